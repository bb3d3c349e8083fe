"""byteps for TensorFlow 2: ``import byteps.tensorflow as bps``, or ``as hvd`` in scripts written for Horovod.

``ops`` ``grouped`` ``adasum``  reductions and broadcasts, eagerly and in graphs
``gathers`` ``scatters``        rows that move between ranks; ``mpi_ops`` has all names
``rounds`` ``differentiable``   what these stand on
``tape`` ``optimizer``          training; both stand on ``gradients``; ``sync_batch_norm``
``cross_barrier``               steps that do not wait (``single_updates``)
``variables``                   variables and objects that become the root's; ``functions`` has their names
``tensors`` ``compression``     tensors as arrays
``keras``                       the same as ``byteps.keras``
"""

from __future__ import annotations

from typing import Any

from byteps.adapters.basics import (
    barrier,
    cross_rank,
    cross_size,
    get_pushpull_speed,
    init,
    is_homogeneous,
    is_initialized,
    join,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from byteps.adapters.builds import (
    HorovodInternalError,
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
)
from byteps.adapters.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from byteps.adapters.reductions import Adasum, Average, Max, Min, Product, Sum
from byteps.tensorflow.compression import Compression
from byteps.tensorflow.cross_barrier import CrossBarrier
from byteps.tensorflow.gathers import allgather, alltoall, grouped_allgather
from byteps.tensorflow.grouped import grouped_allreduce
from byteps.tensorflow.ops import (
    allreduce,
    broadcast,
    local_rank_op,
    local_size_op,
    process_set_included_op,
    push_pull,
    rank_op,
    size_op,
)
from byteps.tensorflow.optimizer import DistributedOptimizer
from byteps.tensorflow.scatters import grouped_reducescatter, reducescatter
from byteps.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape
from byteps.tensorflow.variables import (
    BroadcastGlobalVariablesHook,
    allgather_object,
    broadcast_,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)

__all__ = [
    "Adasum",
    "Average",
    "BroadcastGlobalVariablesHook",
    "Compression",
    "CrossBarrier",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "PartialDistributedGradientTape",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNormalization",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "get_pushpull_speed",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included_op",
    "push_pull",
    "rank",
    "rank_op",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stop_timeline",
]


def __getattr__(name: str) -> Any:
    """``SyncBatchNormalization`` is a class of Keras's, which TensorFlow itself imports at its first use."""
    if name != "SyncBatchNormalization":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from byteps.tensorflow.sync_batch_norm import SyncBatchNormalization

    return SyncBatchNormalization
