"""byteps for PyTorch: ``import byteps.torch as bps``, or ``as hvd`` in scripts written for Horovod.

``ops`` ``broadcasting`` ``handles``    single tensors; ``reduction`` resolves their arguments
``gathers`` ``scatters`` ``grouped``    Horovod's other collectives; ``mpi_ops`` has all names
``sparse`` ``adasum`` ``sync_batch_norm``  sparse sums, Adasum, batch normalisation
``functions`` ``optimizer_state``       parameters, optimizer state, Python objects (``objects``)
``optimizer`` ``parallel``              training; both stand on ``gradients`` (``slots``, ``usage``)
``cross_barrier``                       steps that do not wait (``crossing``, ``reads``, ``views``)
``tensors`` ``staging`` ``compression`` tensors as buffers
``comm_hook`` ``compiled``              torch's own DistributedDataParallel; a warning about torch.compile
``starting``                            init; ``torchrun`` ``invitations`` find the job under torchrun
``collectives``                         torch.distributed for communicator=allreduce
``node_sums`` ``node_streams``          the same among the ranks of a node, on their GPUs
"""

from __future__ import annotations

from byteps.adapters.basics import (
    barrier,
    cross_rank,
    cross_size,
    get_pushpull_speed,
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
from byteps.torch import parallel as parallel
from byteps.torch.broadcasting import broadcast, broadcast_, broadcast_async, broadcast_async_
from byteps.torch.comm_hook import DDPState, ddp_hook
from byteps.torch.compression import Compression
from byteps.torch.cross_barrier import CrossBarrier
from byteps.torch.functions import allgather_object, broadcast_object, broadcast_parameters
from byteps.torch.gathers import (
    allgather,
    allgather_async,
    alltoall,
    alltoall_async,
    grouped_allgather,
    grouped_allgather_async,
)
from byteps.torch.grouped import (
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
)
from byteps.torch.handles import poll, synchronize
from byteps.torch.ops import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    declare,
    push_pull,
    push_pull_async,
    push_pull_async_inplace,
    push_pull_inplace,
)
from byteps.torch.optimizer import DistributedOptimizer
from byteps.torch.optimizer_state import broadcast_optimizer_state
from byteps.torch.scatters import (
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
)
from byteps.torch.sparse import sparse_allreduce_async
from byteps.torch.starting import init
from byteps.torch.sync_batch_norm import SyncBatchNorm

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "CrossBarrier",
    "DDPState",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNorm",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "ddp_hook",
    "declare",
    "get_pushpull_speed",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "push_pull",
    "push_pull_async",
    "push_pull_async_inplace",
    "push_pull_inplace",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]
