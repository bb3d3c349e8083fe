"""Collectives and queries under the module path that Horovod scripts import them from."""

from __future__ import annotations

from byteps.adapters import exports, process_sets
from byteps.adapters.basics import init, join
from byteps.adapters.exports import *
from byteps.adapters.process_sets import *
from byteps.adapters.reductions import Adasum
from byteps.tensorflow.collectives.allreduce import allreduce
from byteps.tensorflow.collectives.gathers import allgather, alltoall, grouped_allgather
from byteps.tensorflow.collectives.grouped import grouped_allreduce
from byteps.tensorflow.collectives.queries import (
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    size_op,
)
from byteps.tensorflow.collectives.scatters import grouped_reducescatter, reducescatter
from byteps.tensorflow.functions.variables import broadcast_
from byteps.tensorflow.ops import broadcast, push_pull

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
