"""How long training steps take: from round to round of the largest tensor that every step uses."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import msgspec

from byteps.wire import Measured, Retune

FIRST_ROUND = 4
"""The first steps of a job are not typical."""
WARM_STEPS = 2
"""Steps after a change that do not count: what was in flight still goes by the settings before."""
_BAD_STEPS = 2
"""So many steps in a row must be too long to end a measurement: one may have met something that passes."""


class Report(msgspec.Struct, frozen=True):
    """Steps that were measured."""

    number: int
    seconds: Sequence[float]
    cut: bool

    def message(self, steady: list[int], rate: float, overhead_s: float) -> Measured:
        """For the coordinator."""
        return Measured(self.number, list(self.seconds), self.cut, steady, rate, overhead_s)


class Meter:
    """Measures one change after another.

    Args:
        window: Steps to measure before the first change.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._number = 0
        self._limit_s = math.inf
        self._sizes: dict[int, tuple[int, int]] = {}  # bytes, and rounds until a tensor is chosen
        self._tensor: int | None = None
        self._moments: list[float] | None = None
        self._waits_for_others = False

    def begin(self, tensor: int, nbytes: int, now_s: float) -> Report | None:
        """A round begins. Returns what was measured when there is enough of it."""
        if self._tensor is None:
            self._choose(tensor, nbytes)
        if tensor != self._tensor or self._moments is None:
            return None
        self._moments.append(now_s)
        times = [after - before for before, after in itertools.pairwise(self._moments)]
        bad = times[1:][-_BAD_STEPS:]
        cut = len(bad) == _BAD_STEPS and min(bad) > self._limit_s
        measured = bad if cut else times[WARM_STEPS:]
        if not cut and len(measured) < self._window:
            return None
        self._moments = None
        return Report(self._number, measured, cut)

    def expect(self, message: Retune) -> None:
        """A change comes: with a later round of the tensor, or of others if that takes no part, else now."""
        self._number, self._window, self._limit_s = message.number, message.steps, message.limit_s
        self._moments = None if message.moves else []
        olds = [move.old for move in message.moves]
        self._waits_for_others = bool(olds) and self._tensor not in olds

    def moved(self, old: int, new: int) -> None:
        """A change has come for a tensor: measure from the round that begins now."""
        if old == self._tensor:
            self._tensor, self._moments = new, []
        elif self._waits_for_others:
            self._moments = []
        self._waits_for_others = False

    def _choose(self, tensor: int, nbytes: int) -> None:
        rounds = self._sizes.get(tensor, (0, 0))[1] + 1
        self._sizes[tensor] = nbytes, rounds
        if rounds == FIRST_ROUND:
            steady = {each: size for each, (size, rounds) in self._sizes.items() if rounds >= FIRST_ROUND - 1}
            self._tensor, self._moments = max(steady, key=steady.__getitem__), []
            self._sizes.clear()
