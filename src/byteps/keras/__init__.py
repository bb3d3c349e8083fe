"""byteps for Keras 3 over TensorFlow, torch or JAX: ``import byteps.keras as bps``, or ``as hvd``.

``optimizer``             ``DistributedOptimizer`` and ``load_model``
``callbacks``             for ``model.fit``
``values`` ``compression`` plain values and variables; casts to 16 bits
"""

from __future__ import annotations

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
from byteps.adapters.reductions import Average, Max, Min, Product, Sum
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
    "Average",
    "Compression",
    "CrossBarrier",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allreduce",
    "barrier",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_variables",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "get_pushpull_speed",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "load_model",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "push_pull",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
