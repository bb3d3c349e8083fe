"""Rounds of tensors under ``AllReduce``, and the memory of the collectives that carry them out."""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from byteps.communicator.all_reduce_forms import CONTAINERS, Array, Form
from byteps.communicator.interface import OK, Buffer
from byteps.dtypes import DType, ReduceOp
from byteps.wire import TensorSpec


class Round:
    """One round of one tensor on this rank: a ``Transfer``.

    Attributes:
        tensor: The tensor's number.
        spec: What was declared about it.
        form: How it travels.
        round: Counts the rounds of this tensor, from 1.
        source, destination: This rank's memory.
        priority: Larger is more urgent.
        status, peer: See ``Transfer``.
        started_bytes, finished_bytes: How much of it has been given to collectives, and come out of them.
    """

    __slots__ = (
        "_over",
        "destination",
        "finished_bytes",
        "form",
        "peer",
        "priority",
        "round",
        "source",
        "spec",
        "started_bytes",
        "status",
        "tensor",
    )

    def __init__(
        self,
        tensor: int,
        spec: TensorSpec,
        form: Form,
        number: int,
        memory: tuple[Buffer | None, Buffer | None],
        priority: int,
    ) -> None:
        self.tensor = tensor
        self.spec = spec
        self.form = form
        self.round = number
        self.source, self.destination = memory
        self.priority = priority
        self.status = self.peer = 0
        self.started_bytes = self.finished_bytes = 0
        self._over = threading.Event()

    @property
    def unresolved(self) -> int:
        """See ``Transfer``. Rank 0 decides how a tensor is cut, so that the rest counts as one."""
        return int(self.status == 0)

    def poll(self) -> bool:
        """See ``Transfer``."""
        return self.status != 0

    def wait(self, timeout_s: float) -> bool:
        """See ``Transfer``."""
        return self._over.wait(None if math.isinf(timeout_s) else min(timeout_s, threading.TIMEOUT_MAX))

    def finish(self, nbytes: int) -> bool:
        """A part's result is in place; with the last one the round is over. Returns whether it is."""
        self.finished_bytes += nbytes
        if self.finished_bytes == self.spec.nbytes:
            self.resolve(OK)
        return self.status != 0

    def resolve(self, status: int, peer: int = 0) -> None:
        """The round is over. Only the first call counts."""
        if self.status == 0:
            self.peer = peer
            self.status = status
            # Whoever keeps the handle must not keep the memory.
            self.source = self.destination = None
            self._over.set()


_NOWHERE = Buffer(0, 0, None)


@dataclass(frozen=True, slots=True)
class Entry:
    """A part of a round that is in a collective.

    Attributes:
        round: Which round.
        begin, nbytes: Which part of the tensor.
        source, destination: This rank's memory, held until the collective is over, whatever becomes of the
            round.
    """

    round: Round
    begin: int
    nbytes: int
    source: Buffer | None
    destination: Buffer | None


class Batch:
    """One collective: parts of tensors that travel alike.

    A part alone travels in the memory that is to hold its result, if it can; several are copied together.

    Attributes:
        parts: What is in it; nothing any more once the results have been taken.
        nbytes: Of the tensors, all parts together.
        memory: What the engine works on.
    """

    def __init__(self, parts: Sequence[Entry], rank: int) -> None:
        self.parts: Sequence[Entry] = parts
        self.nbytes = sum(part.nbytes for part in parts)
        self.form = parts[0].round.form
        self._container = CONTAINERS[self.form.collective.dtype]
        alone = self._in_place(parts[0], rank) if len(parts) == 1 else None
        self.memory = self._gather() if alone is None else alone

    def scatter(self) -> list[tuple[Round, int]]:
        """Put the results where they belong, and let go of the memory.

        Returns:
            The rounds, and how much of each this was.
        """
        at = 0
        for part in self.parts:
            form = part.round.form
            elements = self._elements(part)
            if part.destination is not None:
                result = elements_at(self.memory, at, elements, self._container)
                form.store(result, self._view(part, part.destination))
            at += elements * self._container.itemsize
        moved = [(part.round, part.nbytes) for part in self.parts]
        self.parts, self.memory = (), _NOWHERE
        return moved

    def _in_place(self, part: Entry, rank: int) -> Buffer | None:
        """The tensor's own memory, if the collective can work there."""
        form = part.round.form
        if form.collective.op == ReduceOp.COPY and form.collective.root == rank and part.source is not None:
            return Buffer(part.source.address + part.begin, part.nbytes, part.source.owner)
        if form.wide or part.destination is None:
            return None
        view = self._view(part, part.destination)
        if form.collective.op != ReduceOp.COPY:
            form.load(None if part.source is None else self._view(part, part.source), view)
        return Buffer(part.destination.address + part.begin, part.nbytes, part.destination.owner)

    def _gather(self) -> Buffer:
        scratch = np.empty(sum(self._elements(part) for part in self.parts), self._container)
        at = 0
        for part in self.parts:
            elements = self._elements(part)
            source = None if part.source is None else self._view(part, part.source)
            part.round.form.load(source, scratch[at : at + elements])
            at += elements
        return Buffer(scratch.ctypes.data, scratch.nbytes, scratch)

    def _elements(self, part: Entry) -> int:
        if part.round.form.collective.op == ReduceOp.COPY:
            return part.nbytes
        return part.round.form.elements(part.nbytes)

    def _view(self, part: Entry, buffer: Buffer) -> Array:
        """The part's elements in a tensor's memory; bytes where they are only copied."""
        form = part.round.form
        dtype = DType.UINT8 if form.collective.op == ReduceOp.COPY else form.dtype
        container = CONTAINERS[dtype]
        return elements_at(buffer, part.begin, part.nbytes // container.itemsize, container)


def elements_at(buffer: Buffer, begin: int, elements: int, container: np.dtype[Any]) -> Array:
    """An array over memory, from ``begin`` bytes on."""
    memory: Any = (ctypes.c_char * (elements * container.itemsize)).from_address(buffer.address + begin)
    return np.frombuffer(memory, container)
