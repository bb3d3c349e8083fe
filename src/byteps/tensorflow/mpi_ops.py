"""Collectives and queries under the module path that Horovod scripts import them from."""

from __future__ import annotations

from byteps.adapters import exports, process_sets
from byteps.adapters.basics import init, join
from byteps.adapters.exports import *
from byteps.adapters.process_sets import *
from byteps.adapters.reductions import Adasum
from byteps.tensorflow.functions import broadcast_
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
from byteps.tensorflow.scatters import grouped_reducescatter, reducescatter

__all__ = [
    "Adasum",
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "init",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "push_pull",
    "rank_op",
    "reducescatter",
    "size_op",
]
__all__ += exports.__all__
__all__ += process_sets.__all__
