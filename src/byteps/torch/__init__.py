"""byteps for PyTorch: ``import byteps.torch as bps``, or ``as hvd`` in scripts written for Horovod.

The adapter proper sends tensors and no more; each feature is a package of its own that stands on it:

``tensors`` ``transfers`` ``sending`` ``staging``  tensors as buffers, on the CPU and on GPUs
``ops`` ``reduction`` ``differentiable``  ``push_pull``, and the gradient of it
``compression``                         16-bit floats on the wire

``reductions`` ``collectives``          Horovod's collectives; ``mpi_ops`` has all names
``gradients``                           gradients that hooks send during the backward pass
``optimizer``                           ``DistributedOptimizer``
``partial_steps`` ``dependency_proxy`` ``cross_barrier``  steps that do not wait
``functions``                           parameters, optimizer state, Python objects: one rank's on all
``parallel``                            ``DistributedDataParallel``, ours and torch's own
``distributed`` ``node_sums``           ``torch.distributed`` as the engine of all-reduce, and within a node
``launching``                           ``init``, also under torchrun
"""

from __future__ import annotations

from byteps.adapters.exports import *
from byteps.adapters.process_sets import *
from byteps.torch import mpi_ops
from byteps.torch import parallel as parallel
from byteps.torch.compression import Compression
from byteps.torch.cross_barrier import CrossBarrier
from byteps.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from byteps.torch.mpi_ops import *
from byteps.torch.optimizer import DistributedOptimizer
from byteps.torch.parallel.comm_hook import DDPState, ddp_hook
from byteps.torch.reductions.sync_batch_norm import SyncBatchNorm

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
