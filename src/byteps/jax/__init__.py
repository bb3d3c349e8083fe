"""byteps for JAX: ``import byteps.jax as bps``.

``ops`` ``rounds``           trees of arrays, outside of ``jit`` and within; gradients flow through
``callbacks``                Python functions that compiled code calls
``transform`` ``gradients``  training: an optax transformation; lists of gradients, for Keras's backend
``parameters``               parameters and optimizer states that become the root's
``trees`` ``compression``    what can be sent
"""

from __future__ import annotations

from typing import NoReturn

from byteps.adapters import absent, exports
from byteps.adapters.basics import init
from byteps.adapters.exchange import allgather_object, broadcast_object
from byteps.adapters.exports import *
from byteps.jax.compression import Compression
from byteps.jax.ops import allreduce, broadcast, push_pull
from byteps.jax.parameters import broadcast_parameters
from byteps.jax.transform import push_pull_gradients

__all__ = [
    "Compression",
    "CrossBarrier",
    "allgather_object",
    "allreduce",
    "broadcast",
    "broadcast_object",
    "broadcast_parameters",
    "init",
    "push_pull",
    "push_pull_gradients",
]
__all__ += exports.__all__


class CrossBarrier(absent.Refused):
    """Is not there: a compiled step ends when all of its results are."""

    reason = (
        "byteps.jax cannot cross the barrier: a step that JAX has compiled ends when all of its results are "
        "there, and JAX arrays cannot be updated where they are read. Use push_pull_gradients()"
    )


def __getattr__(name: str) -> NoReturn:
    """What is not there."""
    absent.refuse(__name__, name)
