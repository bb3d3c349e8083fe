"""The order of trials, without I/O: what is run next, given how long steps took with what was run before.

First the settings that the job began with, then the closed form, then what the sampler proposes. The best so
far is measured again from time to time: if it has become another, conditions have changed, and the search
begins anew. A trial that is much worse than the best is cut. The search ends when no place promises a gain
worth having, or after so many trials; from then on only the step's time is watched.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

from byteps.tuning.samplers import Sampler
from byteps.tuning.space import Point, Space
from byteps.tuning.surrogate import Surrogate
from byteps.wire import Knobs

CUT = 1.3
"""A trial whose steps take this many times as long as the best's is given up at once."""
DRIFT = 0.15
"""Tune again when the step's time has changed by more than this share."""
WORTH = 0.01
"""The search ends when the expected gain is below this share of a step."""
AGAIN_EVERY = 5
"""After so many trials the best so far is measured again."""
LEAST_TRIALS = 12
"""No search ends for lack of promise before it has seen so many."""
CONFIRMED = "an earlier job found the same"
PATIENCE = 2
"""So many windows in a row must have drifted: one may have met something that passes."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Steps with one setting.

    Attributes:
        seconds: Of each step, warm-up not among them; empty if the trial failed.
        cut: Whether it was given up early.
    """

    seconds: tuple[float, ...]
    cut: bool = False

    @property
    def median_s(self) -> float:
        """Time of a step; infinite for a failed trial."""
        return statistics.median(self.seconds) if self.seconds else math.inf

    @property
    def noise_s(self) -> float:
        """Median absolute deviation of the steps' times."""
        middle = self.median_s
        return statistics.median(abs(each - middle) for each in self.seconds) if self.seconds else math.inf


@dataclass(frozen=True, slots=True)
class Trial:
    """One setting that was run.

    Attributes:
        kind: Why: ``start``, ``closed form``, ``search``, ``again`` (the best so far), ``tuned``, ``known``.
        knobs: The setting.
        measured: What came of it.
    """

    kind: str
    knobs: Knobs
    measured: Timing


@dataclass(frozen=True, slots=True)
class Try:
    """What is to run next.

    Attributes:
        kind: See ``Trial``.
        knobs: The setting.
        limit_s: Steps that take longer cut the trial; infinite for none.
    """

    kind: str
    knobs: Knobs
    limit_s: float = math.inf


@dataclass
class Search:
    """What to search, and how.

    Attributes:
        space: Where.
        sampler: Makes what proposes places, anew for each search.
        trials: How many, the start and repeated ones not counted.
        first: Says where the closed form points to, once the start was measured; None leaves it out.
        again_every: After so many trials the best so far is measured again; 0: never.
        known: What an earlier job found for the same model, world and link.
    """

    space: Space
    sampler: Callable[[], Sampler]
    trials: int = 30
    first: Callable[[], Point] | None = None
    known: Knobs | None = None
    again_every: int = AGAIN_EVERY


@dataclass
class _Round:
    """One search, from a start to its end."""

    points: list[Point] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    steps: dict[Knobs, list[float]] = field(default_factory=dict)
    count: int = 0

    def record(self, knobs: Knobs, point: Point | None, measured: Timing) -> None:
        """Take note of a measurement."""
        if not measured.seconds:
            return
        self.steps.setdefault(knobs, []).extend(measured.seconds)
        if point is not None:
            self.points.append(point)
            self.seconds.append(measured.median_s)

    def time_s(self, knobs: Knobs) -> float:
        """Median over all that was measured of a setting."""
        return statistics.median(self.steps[knobs])

    def best(self) -> Knobs:
        """The setting whose steps were fastest."""
        return min(self.steps, key=self.time_s)


class Tuner:
    """Says what to run, and is told what came of it.

    Args:
        start: The settings that the job runs with; 0 for automatic ones.
        search: What to do.

    Attributes:
        trials: All that was run, in order.
        settled: Whether the search is over for now; ``best`` is then what it has found.
        best: The fastest setting so far.
        reason: Why the last search ended.
    """

    def __init__(self, start: Knobs, search: Search) -> None:
        self.trials: list[Trial] = []
        self.settled = False
        self.best = start
        self.reason = ""
        self._search = search
        self._running = self._run(start)
        self.now = next(self._running)

    def advance(self, measured: Timing) -> Try:
        """Take note of what came of ``now``, and say what to run next. May take a second."""
        self.trials.append(Trial(self.now.kind, self.now.knobs, measured))
        self.now = self._running.send(measured)
        return self.now

    def _run(self, start: Knobs) -> Generator[Try, Timing, None]:
        while True:
            self.settled = False
            found = _Round()
            changed = yield from self._explore(found, start)
            if changed:
                start, self._search.known = self.best, None
                continue
            yield from self._watch(found)
            start, self._search.known = self.best, None

    def _explore(self, found: _Round, start: Knobs) -> Generator[Try, Timing, bool]:
        """One search. Returns whether it was given up because conditions changed."""
        search, sampler = self._search, self._search.sampler()
        measured = yield Try("start", start)
        found.record(start, self._tell(sampler, start, measured), measured)
        first: list[tuple[str, Knobs]] = [] if search.known is None else [("known", search.known)]
        if search.first is not None:
            first.append(("closed form", search.space.knobs(search.first())))
        while not self._is_over(found):
            self.best = found.best() if found.steps else start
            kind, knobs = first.pop(0) if first else ("search", search.space.knobs(sampler.ask()))
            limit_s = CUT * found.time_s(self.best) if found.steps else math.inf
            measured = yield Try(kind, knobs, limit_s)
            found.count += 1
            found.record(knobs, self._tell(sampler, knobs, measured), measured)
            if search.again_every and found.count % search.again_every == 0 and found.steps:
                again = yield from self._again(found)
                if again:
                    return True
        self.best = self._choose(found, start)
        return False

    def _again(self, found: _Round) -> Generator[Try, Timing, bool]:
        """Measure the best once more. Returns whether its time has drifted."""
        best = self.best = found.best()
        before_s = found.time_s(best)
        for _ in range(PATIENCE):
            measured = yield Try("again", best)
            if not _has_drifted(measured, before_s):
                found.record(best, self._search.space.point(best), measured)
                return False
        return True

    def _watch(self, found: _Round) -> Generator[Try, Timing, None]:
        """Run with the best until its steps take another time."""
        self.settled = True
        expected_s = found.time_s(self.best) if self.best in found.steps else math.nan
        drifted = 0
        while drifted < PATIENCE:
            measured = yield Try("tuned", self.best)
            if math.isnan(expected_s):
                expected_s = measured.median_s
            drifted = drifted + 1 if _has_drifted(measured, expected_s) else 0

    def _tell(self, sampler: Sampler, knobs: Knobs, measured: Timing) -> Point | None:
        point = self._search.space.point(knobs)
        if point is not None and measured.seconds:
            sampler.tell(point, measured.median_s)
        return point

    def _is_over(self, found: _Round) -> bool:
        if found.count >= self._search.trials:
            self.reason = f"{found.count} trials"
            return True
        if found.count == 1 and self.trials[-1].kind == "known" and found.best() == self.trials[-1].knobs:
            self.reason = CONFIRMED
            return True
        if found.count < LEAST_TRIALS or len(found.points) < 2:
            return False
        fit = Surrogate(self._search.space, found.points, found.seconds)
        gains = fit.expected_gains(list(self._search.space.points()), found.time_s(found.best()))
        gain = float(gains.max())
        self.reason = f"expected gain {100 * max(gain, 0):.1f} %"
        return gain < WORTH

    def _choose(self, found: _Round, start: Knobs) -> Knobs:
        """The place that the model thinks best of those tried; the start if it is faster than that.

        The fastest measurement is often a lucky one: the model sees its neighbours too.
        """
        if len(found.points) < 2:
            return found.best() if found.steps else start
        tried = sorted(set(found.points))
        mean, _ = Surrogate(self._search.space, found.points, found.seconds).predict(tried)
        knobs = self._search.space.knobs(tried[int(mean.argmin())])
        automatic = start in found.steps and self._search.space.point(start) is None
        return start if automatic and found.time_s(start) < math.exp(float(mean.min())) else knobs


def _has_drifted(measured: Timing, before_s: float) -> bool:
    return bool(measured.seconds) and abs(measured.median_s / before_s - 1) > DRIFT


def medians(trials: Sequence[Trial]) -> dict[Knobs, float]:
    """Time of a step with each setting, over all of its trials."""
    found = _Round()
    for trial in trials:
        found.record(trial.knobs, None, trial.measured)
    return {knobs: found.time_s(knobs) for knobs in found.steps}
