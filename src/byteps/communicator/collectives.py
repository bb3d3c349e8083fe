"""What an engine for collectives offers to ``AllReduce``: a framework's process group, or one in memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import msgspec
import numpy as np

from byteps.communicator.board import Board
from byteps.communicator.interface import Buffer
from byteps.config import Config
from byteps.dtypes import DType, ReduceOp
from byteps.errors import JoinError

_TRIALS = 12
"""Tiny collectives, the fastest of which is the latency: a machine where jobs start is busy otherwise."""


class Collective(msgspec.Struct, frozen=True):
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
        """How many it may be given before the first is over; it begins them in their order."""

    @property
    def dtypes(self) -> frozenset[DType]:
        """What it can reduce."""

    def start(self, what: Collective, memory: Buffer, done: Done) -> None:
        """Begin; returns at once. The result replaces the memory's contents before ``done`` is called.

        The root of a COPY only reads. Never called by two threads at once.
        """

    def close(self) -> None:
        """End connections and threads. Collectives in progress fail, here or at the other ranks."""


class Meeting(msgspec.Struct, frozen=True):
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


def latency_s(engine: Collectives, timeout_s: float) -> float:
    """Time of a collective of next to no bytes. All ranks call this at the same time.

    Raises:
        JoinError: A collective failed, or was not over in time.
    """
    data = np.zeros(1, np.float32)
    memory = Buffer(data.ctypes.data, data.nbytes, data)
    times = []
    for _ in range(_TRIALS):
        over = threading.Event()
        errors: list[Exception | None] = []

        def done(error: Exception | None, over: threading.Event = over, to: list[Any] = errors) -> None:
            to.append(error)
            over.set()

        begin_s = time.monotonic()
        engine.start(Collective(DType.FLOAT32, ReduceOp.SUM), memory, done)
        if not over.wait(timeout_s):
            raise JoinError(f"{engine.name}: the first collective was not over within {timeout_s:g} s")
        if errors[0] is not None:
            raise JoinError(f"{engine.name}: the first collective failed: {errors[0]}") from errors[0]
        times.append(time.monotonic() - begin_s)
    return min(times)
