"""byteps for JAX: ``import byteps.jax as bps``.

``ops`` ``rounds``           trees of arrays, outside of ``jit`` and within; gradients flow through
``callbacks``                Python functions that compiled code calls
``transform`` ``gradients``  training: an optax transformation; lists of gradients, for Keras's backend
``parameters``               parameters and optimizer states that become the root's
``trees`` ``compression``    what can be sent
"""

from __future__ import annotations

from typing import NoReturn

from byteps.adapters import absent
from byteps.adapters.basics import (
    barrier,
    get_pushpull_speed,
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from byteps.adapters.exchange import allgather_object, broadcast_object
from byteps.adapters.reductions import Average, Max, Min, Product, Sum
from byteps.jax.compression import Compression
from byteps.jax.cross_barrier import CrossBarrier
from byteps.jax.ops import allreduce, broadcast, push_pull
from byteps.jax.parameters import broadcast_parameters
from byteps.jax.transform import push_pull_gradients

__all__ = [
    "Average",
    "Compression",
    "CrossBarrier",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather_object",
    "allreduce",
    "barrier",
    "broadcast",
    "broadcast_object",
    "broadcast_parameters",
    "get_pushpull_speed",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "push_pull",
    "push_pull_gradients",
    "rank",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]


def __getattr__(name: str) -> NoReturn:
    """What is not there."""
    absent.refuse(__name__, name)
