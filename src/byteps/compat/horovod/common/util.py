"""``horovod.common.util``: questions about what is installed and built."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

from byteps.adapters import builds

ItemT = TypeVar("ItemT")


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether a framework (``torch``, ``tensorflow``) is installed: nothing is built against it."""
    return importlib.util.find_spec(ext_base_name) is not None


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """False: no operation runs on a GPU here. CUDA tensors are accepted all the same."""
    return False


def mpi_built(verbose: bool = False) -> bool:
    """False: nothing uses MPI."""
    return builds.mpi_built()


def gloo_built(verbose: bool = False) -> bool:
    """See ``hvd.gloo_built``."""
    return builds.gloo_built()


def nccl_built(verbose: bool = False) -> bool:
    """False: see ``hvd.nccl_built``."""
    return bool(builds.nccl_built())


def num_rank_is_power_2(num_rank: int) -> bool:
    """Whether a number is a power of two."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def split_list(items: Sequence[ItemT], num_parts: int) -> list[list[ItemT]]:
    """Cut a list into parts, as equal as can be, the first ones longer."""
    base, more = divmod(len(items), num_parts)
    ends = [part * base + min(part, more) for part in range(num_parts + 1)]
    return [list(items[begin:end]) for begin, end in pairwise(ends)]
