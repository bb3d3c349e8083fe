"""Ranks and sizes as tensors, which a graph looks up each time that it runs."""

from __future__ import annotations

from typing import Any

from byteps.adapters import basics
from byteps.adapters.process_sets import ranks_of
from byteps.tensorflow.rounds import looked_up


def rank_op(name: str | None = None) -> Any:
    """``rank()`` as an int32 scalar; in a graph it is looked up when the graph runs."""
    return looked_up(basics.rank)


def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """``size()``, or that of a process set, as an int32 scalar; in a graph it is looked up when that runs."""
    return looked_up(lambda: len(ranks_of(process_set_id)))


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """1 if this rank is in a process set, else 0, as an int32 scalar that is looked up like ``size_op``."""
    return looked_up(lambda: int(basics.rank() in ranks_of(process_set_id)))


def local_rank_op(name: str | None = None) -> Any:
    """``local_rank()`` as an int32 scalar; in a graph it is looked up when the graph runs."""
    return looked_up(basics.local_rank)


def local_size_op(name: str | None = None) -> Any:
    """``local_size()`` as an int32 scalar; in a graph it is looked up when the graph runs."""
    return looked_up(basics.local_size)
