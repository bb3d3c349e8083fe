"""byteps for Keras 3 over TensorFlow, torch or JAX: ``import byteps.keras as bps``, or ``as hvd``.

``optimizer``             ``DistributedOptimizer`` and ``load_model``
``callbacks``             for ``model.fit``
``values`` ``compression`` plain values and variables; casts to 16 bits
"""

from __future__ import annotations

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
)
from byteps.adapters.reductions import Average, Max, Min, Product, Sum
from byteps.keras import callbacks as callbacks
from byteps.keras.compression import Compression
from byteps.keras.optimizer import DistributedOptimizer, load_model
from byteps.keras.values import allreduce, broadcast, broadcast_variables, push_pull

__all__ = [
    "Average",
    "Compression",
    "DistributedOptimizer",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allreduce",
    "barrier",
    "broadcast",
    "broadcast_variables",
    "callbacks",
    "get_pushpull_speed",
    "init",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "push_pull",
    "rank",
    "shutdown",
    "size",
]
