"""Rank 0 decides what all ranks do next: of what every rank has announced, the most urgent first.

Nobody is asked: every rank tells, in one direction, what it has; rank 0 tells, in the other, what is next. A
tensor that some rank lacks is in nobody's way, in whatever order ranks submit and wait.
"""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass

from byteps.communicator.all_reduce_forms import Form
from byteps.communicator.all_reduce_rounds import Round
from byteps.communicator.all_reduce_sizes import DEPTH, Sizes
from byteps.scheduler import Part, Scheduler

Piece = tuple[int, int, int]
"""A part of a tensor: its number, where the part begins, its bytes."""
OVER = 1.25
"""A collective may be this much larger than intended, so that no small rest needs one of its own."""


@dataclass(slots=True)
class _Granted:
    round: Round
    part: Part

    @property
    def form(self) -> Form:
        return self.round.form


class Leader:
    """Decides.

    Args:
        size: Number of ranks.
        concurrency: Collectives in flight at most; what waits meanwhile is fused.
        sizes: How large they should be.
        policy: Of the scheduler.
        fuses: Whether several tensors may share a collective.
    """

    def __init__(self, size: int, concurrency: int, sizes: Sizes, policy: str, fuses: bool) -> None:
        self._size = size
        self._concurrency = concurrency
        self._sizes = sizes
        self._fuses = fuses
        self._announced: dict[int, set[int]] = {}
        self._granted: deque[_Granted] = deque()
        self._in_flight: dict[int, list[_Granted]] = {}
        self._numbers = itertools.count()
        self._waiting = 0  # parts that wait for credit
        self._partition_bytes = sizes.collective_bytes
        self._scheduler = Scheduler(
            credit_bytes=sizes.credit_bytes, partition_bytes=self._partition_bytes, policy=policy
        )

    def announced(self, rank: int, tensor: int) -> bool:
        """A rank has submitted its next round of a tensor. Returns whether it was the last to do so."""
        ranks = self._announced.setdefault(tensor, set())
        ranks.add(rank)
        if len(ranks) < self._size:
            return False
        del self._announced[tensor]
        return True

    def missing(self, tensor: int) -> list[int]:
        """Ranks that have not submitted a round of the tensor that others have."""
        ranks = self._announced.get(tensor)
        return [] if ranks is None else [rank for rank in range(self._size) if rank not in ranks]

    def forget(self, tensor: int) -> None:
        """No round of the tensor will come about."""
        self._announced.pop(tensor, None)

    def schedule(self, one: Round) -> None:
        """All ranks have this round: it takes part from now on."""

        def start(part: Part) -> None:
            self._waiting -= 1
            self._granted.append(_Granted(one, part))

        task = self._scheduler.submit(one.spec.name, one.spec.nbytes, start, priority=one.priority)
        self._waiting += -(-one.spec.nbytes // self._partition_bytes)
        task.ready()

    def next(self) -> tuple[int, list[Piece]] | None:
        """A number for the next collective, and what is to share it; None for nothing now."""
        if not self._granted or len(self._in_flight) >= self._concurrency or self._grows():
            return None
        limit = OVER * self._sizes.fusion_bytes
        batch = [self._granted.popleft()]
        total = batch[0].part.nbytes
        what = batch[0].form.collective
        while self._fuses and self._granted and self._granted[0].form.collective == what:
            total += self._granted[0].part.nbytes
            if total > limit:
                break
            batch.append(self._granted.popleft())
        number = next(self._numbers)
        self._in_flight[number] = batch
        return number, _pieces(batch)

    def _grows(self) -> bool:
        """Whether the next collective is small, and more will share it as others end.

        Else one small collective after the other would begin as small ones end. Half of the intended size is
        enough, since credit for the rest may not come before another one is over.
        """
        if not (self._fuses and self._waiting and self._in_flight):
            return False
        wanted = min(self._sizes.fusion_bytes, self._sizes.credit_bytes // DEPTH) // 2
        for one in self._granted:
            wanted -= one.part.nbytes
            if wanted <= 0:
                return False
        return True

    def finished(self, number: int, now_s: float) -> None:
        """A collective is over; its credit serves what is most urgent now.

        Args:
            number: As ``next`` gave it.
            now_s: Any monotonic clock.
        """
        batch = self._in_flight.pop(number)
        nbytes = sum(one.part.nbytes for one in batch)
        if self._sizes.moved(nbytes, now_s, more=self._waiting > 0):
            self.resize()
        for one in batch:
            one.part.finish()

    def resize(self) -> None:
        """Go by what ``sizes`` say now."""
        self._partition_bytes = self._sizes.collective_bytes
        self._scheduler.set_partition(self._partition_bytes)
        self._scheduler.set_credit(self._sizes.credit_bytes)

    def close(self) -> None:
        """Decide nothing any more."""
        self._scheduler.close()
        self._granted.clear()


def _pieces(batch: list[_Granted]) -> list[Piece]:
    """Neighbouring parts of a tensor become one."""
    pieces: list[Piece] = []
    for one in batch:
        tensor, begin, nbytes = one.round.tensor, one.part.offset, one.part.nbytes
        if pieces and pieces[-1][0] == tensor and pieces[-1][1] + pieces[-1][2] == begin:
            begin, nbytes = pieces[-1][1], pieces[-1][2] + nbytes
            pieces.pop()
        pieces.append((tensor, begin, nbytes))
    return pieces
