"""What every adapter exports as it is: the calls that touch no tensor, and the operators of those that do.

An adapter says ``from byteps.adapters.exports import *`` and adds ``exports.__all__`` to ``__all__``, even
if it exports all of a module that does the same: type checkers follow a name over one such import only.
"""

from __future__ import annotations

from byteps.adapters.basics import (
    barrier,
    cross_rank,
    cross_size,
    get_pushpull_speed,
    is_homogeneous,
    is_initialized,
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
from byteps.adapters.reductions import Average, Max, Min, Product, Sum

__all__ = [
    "Average",
    "HorovodInternalError",
    "Max",
    "Min",
    "Product",
    "Sum",
    "barrier",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "get_pushpull_speed",
    "gloo_built",
    "gloo_enabled",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
