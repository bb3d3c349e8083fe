"""byteps for TensorFlow 2: ``import byteps.tensorflow as bps``, or ``as hvd`` in scripts written for Horovod.

``ops`` ``grouped`` ``adasum``  reductions and broadcasts, eagerly and in graphs
``gathers`` ``scatters``        rows that move between ranks; ``mpi_ops`` has all names
``rounds`` ``differentiable``   what these stand on
``tape`` ``optimizer``          training; both stand on ``gradients``; ``sync_batch_norm``
``cross_barrier``               steps that do not wait (``single_updates``)
``functions``                   variables and objects that become the root's
``tensors`` ``compression``     tensors as arrays
``keras``                       the same as ``byteps.keras``
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from byteps.adapters.exports import *
from byteps.adapters.process_sets import *
from byteps.tensorflow import mpi_ops
from byteps.tensorflow.compression import Compression
from byteps.tensorflow.cross_barrier import CrossBarrier
from byteps.tensorflow.functions import (
    BroadcastGlobalVariablesHook,
    allgather_object,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from byteps.tensorflow.mpi_ops import *
from byteps.tensorflow.optimizer import DistributedOptimizer
from byteps.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape

__all__ = [
    "BroadcastGlobalVariablesHook",
    "Compression",
    "CrossBarrier",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "PartialDistributedGradientTape",
    "SyncBatchNormalization",
    "allgather_object",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
]
__all__ += mpi_ops.__all__

if TYPE_CHECKING:
    from byteps.tensorflow.sync_batch_norm import SyncBatchNormalization


def __getattr__(name: str) -> Any:
    """``SyncBatchNormalization`` is a class of Keras's, which TensorFlow itself imports at its first use."""
    if name != "SyncBatchNormalization":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from byteps.tensorflow import sync_batch_norm

    return sync_batch_norm.SyncBatchNormalization
