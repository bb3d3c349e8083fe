"""byteps for MXNet: ``import byteps.mxnet as bps``, or ``as hvd``.

The adapter proper sends arrays, ``training`` stands on it:

``tensors`` ``compression``  what can be sent
``engine`` ``rounds``        operations of MXNet's engine that end when a round is over
``ops``                      ``push_pull`` and ``broadcast`` of arrays; gradients flow through

``training``                 Gluon's ``Trainer``, optimizers, a KVStore, the root's parameters
"""

from __future__ import annotations

import os
from typing import NoReturn

from byteps.adapters import absent, exports
from byteps.adapters.basics import init
from byteps.adapters.exchange import allgather_object, broadcast_object
from byteps.adapters.exports import *
from byteps.mxnet.compression import Compression
from byteps.mxnet.ops import (
    allreduce,
    allreduce_,
    broadcast,
    broadcast_,
    byteps_declare_tensor,
    byteps_push_pull,
    grouped_allreduce,
    grouped_allreduce_,
    push_pull,
)
from byteps.mxnet.rounds import finish_rounds, make_errors_known
from byteps.mxnet.training.optimizer import DistributedOptimizer
from byteps.mxnet.training.parameters import broadcast_parameters
from byteps.mxnet.training.store import BytePS as KVStore
from byteps.mxnet.training.trainer import DistributedTrainer

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "DistributedTrainer",
    "KVStore",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "broadcast",
    "broadcast_",
    "broadcast_object",
    "broadcast_parameters",
    "byteps_declare_tensor",
    "byteps_push_pull",
    "grouped_allreduce",
    "grouped_allreduce_",
    "init",
    "push_pull",
]
__all__ += exports.__all__

make_errors_known()
os.register_at_fork(before=finish_rounds)


def __getattr__(name: str) -> NoReturn:
    """What is not there."""
    absent.refuse(__name__, name)
