"""byteps for Keras 3 over TensorFlow, torch or JAX: ``import byteps.keras as bps``, or ``as hvd``.

``optimizer``             ``DistributedOptimizer`` and ``load_model``
``callbacks``             for ``model.fit``
``values`` ``compression`` plain values and variables; casts to 16 bits
"""

from __future__ import annotations

from byteps.adapters import exports, process_sets
from byteps.adapters.basics import init, join
from byteps.adapters.exports import *
from byteps.adapters.process_sets import *
from byteps.keras import callbacks as callbacks
from byteps.keras.compression import Compression
from byteps.keras.cross_barrier import CrossBarrier
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
