"""byteps for TensorFlow 2: ``import byteps.tensorflow as bps``, or ``as hvd`` in scripts written for Horovod.

The adapter proper sends tensors; each feature is a package of its own that stands on it:

``tensors`` ``compression``     tensors as arrays
``rounds`` ``differentiable`` ``ops``  ``push_pull`` and ``broadcast``, eagerly and in graphs
``gradients`` ``optimizer``     gradients of variables, dense and sparse; ``DistributedOptimizer``

``collectives``                 Horovod's collectives; ``mpi_ops`` has all names
``functions``                   variables and objects that become the root's
``tape``                        ``DistributedGradientTape``
``cross_barrier``               steps that do not wait
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
