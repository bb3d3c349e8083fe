"""byteps for TensorFlow 2: ``import byteps.tensorflow as bps``, or ``as hvd`` in scripts written for Horovod.

``ops`` ``gathers`` ``rounds`` single tensors, eagerly and in graphs
``tape`` ``optimizer``     training; both stand on ``gradients``
``variables``              variables and objects that become the root's
``tensors`` ``compression`` tensors as arrays
``keras``                  the same as ``byteps.keras``
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
from byteps.tensorflow.compression import Compression
from byteps.tensorflow.gathers import allgather
from byteps.tensorflow.ops import (
    allreduce,
    broadcast,
    local_rank_op,
    local_size_op,
    push_pull,
    rank_op,
    size_op,
)
from byteps.tensorflow.optimizer import DistributedOptimizer
from byteps.tensorflow.tape import DistributedGradientTape
from byteps.tensorflow.variables import (
    BroadcastGlobalVariablesHook,
    allgather_object,
    broadcast_global_variables,
    broadcast_object,
    broadcast_variables,
)

__all__ = [
    "Average",
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather",
    "allgather_object",
    "allreduce",
    "barrier",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "get_pushpull_speed",
    "init",
    "is_initialized",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "push_pull",
    "rank",
    "rank_op",
    "shutdown",
    "size",
    "size_op",
]
