"""Collectives, handles and queries under the module path that Horovod and BytePS scripts import them from."""

from __future__ import annotations

from byteps.adapters import exports, process_sets
from byteps.adapters.basics import join
from byteps.adapters.exports import *
from byteps.adapters.handles import poll, synchronize
from byteps.adapters.process_sets import *
from byteps.adapters.reductions import Adasum
from byteps.torch.collectives.gathers import (
    allgather,
    allgather_async,
    alltoall,
    alltoall_async,
    grouped_allgather,
    grouped_allgather_async,
)
from byteps.torch.collectives.scatters import (
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
)
from byteps.torch.collectives.sparse import sparse_allreduce_async
from byteps.torch.functions.broadcasting import broadcast, broadcast_, broadcast_async, broadcast_async_
from byteps.torch.launching.starting import init
from byteps.torch.ops import (
    declare,
    push_pull,
    push_pull_async,
    push_pull_async_inplace,
    push_pull_inplace,
)
from byteps.torch.reductions.allreduce import allreduce, allreduce_, allreduce_async, allreduce_async_
from byteps.torch.reductions.grouped import (
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
)

__all__ = [
    "Adasum",
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "declare",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "join",
    "poll",
    "push_pull",
    "push_pull_async",
    "push_pull_async_inplace",
    "push_pull_inplace",
    "reducescatter",
    "reducescatter_async",
    "sparse_allreduce_async",
    "synchronize",
]
__all__ += exports.__all__
__all__ += process_sets.__all__
