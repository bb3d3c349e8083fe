"""``byteps.keras`` under the name that scripts for ``tf.keras`` import: since Keras 3 they are the same."""

from __future__ import annotations

from byteps.keras import (
    Average,
    Compression,
    DistributedOptimizer,
    Max,
    Min,
    Product,
    Sum,
    allreduce,
    barrier,
    broadcast,
    broadcast_variables,
    get_pushpull_speed,
    init,
    is_initialized,
    load_model,
    local_rank,
    local_size,
    push_pull,
    rank,
    shutdown,
    size,
)
from byteps.tensorflow.keras import callbacks as callbacks

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
