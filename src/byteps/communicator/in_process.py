"""Collectives of ranks that are threads of one process: for tests, of byteps and of programs that use it."""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from byteps.communicator.all_reduce_forms import CONTAINERS, Array
from byteps.communicator.all_reduce_rounds import elements_at
from byteps.communicator.collectives import Collective, Done, Meeting
from byteps.communicator.interface import Buffer
from byteps.dtypes import DType, ReduceOp
from byteps.errors import ProtocolError

_NUMPY_OPS = MappingProxyType(
    {
        ReduceOp.SUM: np.add,
        ReduceOp.MIN: np.minimum,
        ReduceOp.MAX: np.maximum,
        ReduceOp.PRODUCT: np.multiply,
    }
)


@dataclass
class _Call:
    """One collective, by rank what each has started."""

    what: dict[int, Collective] = field(default_factory=dict)
    memory: dict[int, Buffer] = field(default_factory=dict)
    done: dict[int, Done] = field(default_factory=dict)


class InProcessGroup:
    """The ranks of one job.

    Args:
        size: How many.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._calls: dict[int, _Call] = {}
        self._closed: set[int] = set()
        self._pool = ThreadPoolExecutor(2, "byteps-in-process")

    def join(self, meeting: Meeting) -> InProcessCollectives:
        """The collectives of one rank: an ``Engine``."""
        return InProcessCollectives(self, meeting.rank)

    def start(self, rank: int, number: int, what: Collective, memory: Buffer, done: Done) -> None:
        """A rank starts its collective of that number."""
        with self._lock:
            call = self._calls.get(number) or _Call()
            if gone := self._closed - call.done.keys():
                self._pool.submit(done, ConnectionError(f"rank {min(gone)} has closed"))
                return
            self._calls[number] = call
            call.what[rank], call.memory[rank], call.done[rank] = what, memory, done
            if len(call.what) == self._size:
                del self._calls[number]
                self._pool.submit(_carry_out, call)

    def close(self, rank: int) -> None:
        """A rank has gone: what it has not started fails at the others."""
        with self._lock:
            if rank in self._closed:
                return
            self._closed.add(rank)
            failed = [call for call in self._calls.values() if rank not in call.done]
            error = ConnectionError(f"rank {rank} has closed")
            for done in [done for call in failed for done in call.done.values()]:
                self._pool.submit(done, error)
            self._calls = {number: one for number, one in self._calls.items() if one not in failed}
            last = len(self._closed) == self._size
        if last:
            self._pool.shutdown()


class InProcessCollectives:
    """See ``Collectives``; of one rank.

    Args:
        group: All ranks.
        rank: This one.
    """

    name = "the in-process engine"
    concurrency = 4
    dtypes = frozenset(DType) - {DType.FLOAT16, DType.BFLOAT16, DType.INT16, DType.BOOL}

    def __init__(self, group: InProcessGroup, rank: int) -> None:
        self._group = group
        self._rank = rank
        self._started = 0

    def start(self, what: Collective, memory: Buffer, done: Done) -> None:
        """See ``Collectives.start``."""
        self._started += 1
        self._group.start(self._rank, self._started, what, memory, done)

    def close(self) -> None:
        """See ``Collectives.close``."""
        self._group.close(self._rank)


def _carry_out(call: _Call) -> None:
    error: Exception | None = None
    kinds = {(what, call.memory[rank].nbytes) for rank, what in call.what.items()}
    if len(kinds) > 1:
        error = ProtocolError(f"ranks started different collectives at the same time: {kinds}")
    else:
        what = call.what[0]
        arrays = [_array(call.memory[rank], what) for rank in range(len(call.what))]
        result = arrays[what.root].copy() if what.op is ReduceOp.COPY else _reduced(arrays, what.op)
        for rank, array in enumerate(arrays):
            if rank != what.root:
                array[:] = result
        call.memory.clear()  # who has been told may not find its memory in use
        del arrays, array
    for done in call.done.values():
        done(error)


def _reduced(arrays: Sequence[Array], op: ReduceOp) -> Array:
    with np.errstate(all="ignore"):
        return functools.reduce(_NUMPY_OPS[op], arrays)


def _array(memory: Buffer, what: Collective) -> Array:
    container = CONTAINERS[what.dtype]
    return elements_at(memory, 0, memory.nbytes // container.itemsize, container)
