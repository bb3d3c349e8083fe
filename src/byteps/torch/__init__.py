"""byteps for PyTorch: ``import byteps.torch as bps``, or ``as hvd`` in scripts written for Horovod.

``ops`` ``broadcasting`` ``handles``    single tensors; ``reduction`` resolves their arguments
``gathers`` ``scatters`` ``grouped``    Horovod's other collectives; ``mpi_ops`` has all names
``sparse`` ``adasum`` ``sync_batch_norm``  sparse sums, Adasum, batch normalisation
``functions`` ``optimizer_state``       parameters, optimizer state, Python objects (``objects``)
``optimizer`` ``parallel``              training; both stand on ``gradients`` (``slots``)
``cross_barrier``                       steps that do not wait (``crossing``, ``reads``, ``views``)
``tensors`` ``staging`` ``compression`` tensors as buffers
``comm_hook`` ``compiled``              torch's own DistributedDataParallel; a warning about torch.compile
``starting``                            init; ``torchrun`` ``invitations`` find the job under torchrun
``collectives``                         torch.distributed for communicator=allreduce
``node_sums`` ``node_streams``          the same among the ranks of a node, on their GPUs
"""

from __future__ import annotations

from byteps.adapters.exports import *
from byteps.adapters.process_sets import *
from byteps.torch import mpi_ops
from byteps.torch import parallel as parallel
from byteps.torch.comm_hook import DDPState, ddp_hook
from byteps.torch.compression import Compression
from byteps.torch.cross_barrier import CrossBarrier
from byteps.torch.functions import allgather_object, broadcast_object, broadcast_parameters
from byteps.torch.mpi_ops import *
from byteps.torch.optimizer import DistributedOptimizer
from byteps.torch.optimizer_state import broadcast_optimizer_state
from byteps.torch.sync_batch_norm import SyncBatchNorm

__all__ = [
    "Compression",
    "CrossBarrier",
    "DDPState",
    "DistributedOptimizer",
    "SyncBatchNorm",
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ddp_hook",
]
__all__ += mpi_ops.__all__
