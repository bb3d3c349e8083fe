"""byteps for Keras 3 over TensorFlow, torch or JAX: ``import byteps.keras as bps``, or ``as hvd``.

``optimizer``             ``DistributedOptimizer`` and ``load_model``
``callbacks``             for ``model.fit``
``values`` ``compression`` plain values and variables; casts to 16 bits
"""

from __future__ import annotations

from byteps.adapters import absent, exports, process_sets
from byteps.adapters.basics import init, join
from byteps.adapters.exports import *
from byteps.adapters.process_sets import *
from byteps.keras import callbacks as callbacks
from byteps.keras.compression import Compression
from byteps.keras.optimizer import DistributedOptimizer, PartialDistributedOptimizer, load_model
from byteps.keras.values import (
    allgather,
    allreduce,
    broadcast,
    broadcast_global_variables,
    broadcast_variables,
    push_pull,
    reducescatter,
)

__all__ = [
    "Compression",
    "CrossBarrier",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_variables",
    "callbacks",
    "init",
    "join",
    "load_model",
    "push_pull",
    "reducescatter",
]
__all__ += exports.__all__
__all__ += process_sets.__all__


class CrossBarrier(absent.Refused):
    """Is not there: ``fit`` updates all variables within a step."""

    reason = (
        "byteps.keras cannot cross the barrier: fit() ends each step by an update of all variables, and "
        "nothing may wait where it reads them. Use DistributedOptimizer, or a training loop of your own: "
        "byteps.tensorflow.CrossBarrier, byteps.torch.CrossBarrier"
    )
