"""What an engine for collectives offers to ``AllReduce``: a framework's process group, or one in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from byteps.communicator.board import Board
from byteps.communicator.interface import Buffer
from byteps.config import Config
from byteps.dtypes import DType, ReduceOp


@dataclass(frozen=True, slots=True)
class Collective:
    """What all ranks do together, each with a region of its memory.

    Attributes:
        dtype: Of the elements.
        op: SUM, MIN, MAX or PRODUCT over all ranks, or COPY: the root's bytes for all.
        root: For COPY; -1 otherwise.
    """

    dtype: DType
    op: ReduceOp
    root: int = -1


Done = Callable[[Exception | None], None]
"""Told that a collective is over, and why it failed; on any thread."""


class Collectives(Protocol):
    """Collectives of all ranks, on memory of the host. All ranks start the same ones in the same order."""

    @property
    def name(self) -> str:
        """What errors and reports call it."""

    @property
    def concurrency(self) -> int:
        """How many it carries out side by side."""

    @property
    def dtypes(self) -> frozenset[DType]:
        """What it can reduce."""

    def start(self, what: Collective, memory: Buffer, done: Done) -> None:
        """Begin; returns at once. The result replaces the memory's contents before ``done`` is called.

        The root of a COPY only reads. Never called by two threads at once.
        """

    def close(self) -> None:
        """End connections and threads. Collectives in progress fail, here or at the other ranks."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """What an engine needs to find the other ranks.

    Attributes:
        rank, size: This worker and how many there are.
        board: Where ranks leave each other notes.
        config: The settings in force.
    """

    rank: int
    size: int
    board: Board
    config: Config


Engine = Callable[[Meeting], Collectives]
"""Makes the collectives of one rank; all ranks make theirs at the same time."""
