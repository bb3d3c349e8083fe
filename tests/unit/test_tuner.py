"""The search for settings, on made-up step times: order of trials, its end, how good what it finds is."""

from __future__ import annotations

import importlib.util
import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from byteps.tuning.samplers import SAMPLERS
from byteps.tuning.space import SERVER_SPACE, Axis, Point, Space, closed_form
from byteps.tuning.surrogate import Surrogate
from byteps.tuning.tuner import CUT, Search, Timing, Tuner
from byteps.wire import Knobs

GRID = Space((Axis("partition_bytes", 14, 24), Axis("credit_bytes", 16, 25)))
STEP_BYTES, RATE, OVERHEAD_S = 17e6, 55e6, 2e-4
COMPUTE_S = 0.3


def step_s(knobs: Knobs) -> float:
    """A step that computes, sends everything, and has its first layer wait behind what is in flight."""
    partition, credit = float(knobs.partition_bytes), float(max(knobs.credit_bytes, knobs.partition_bytes))
    trip_s = partition / RATE + 0.004  # until the credit is back
    idle = max(1.0, trip_s * RATE / credit)  # the credit does not cover the way
    sending_s = (STEP_BYTES / RATE + STEP_BYTES / partition * OVERHEAD_S) * idle
    return max(COMPUTE_S, 0.2 + sending_s) + (credit + partition) / RATE


def collectives_s(knobs: Knobs) -> float:
    """A step over collectives: each costs a latency besides its bytes, four at a time hide theirs.

    With a large credit everything is under way before the first layer's gradients are there, so nearly all
    places are first come first served; only a narrow valley is faster.
    """
    nbytes, rate, latency_s = 3.2e6, 10e6, 0.002
    partition = min(knobs.partition_bytes, 1 << 18)  # no tensor is larger
    under_way = min(max(knobs.credit_bytes // partition, 1), 4)
    sending_s = nbytes / rate + (nbytes / partition + 20) * latency_s / under_way
    ahead_s = (min(knobs.credit_bytes, 0.3 * nbytes) + partition) / rate
    return max(0.2, sending_s) + ahead_s


BEST_S = min(step_s(GRID.knobs(point)) for point in GRID.points())
COLLECTIVES = Space((Axis("partition_bytes", 16, 24), Axis("credit_bytes", 17, 26)))
BAD = Knobs(partition_bytes=16 << 20, credit_bytes=16 << 20)


@dataclass
class Job:
    """Runs what a tuner says."""

    tuner: Tuner
    seed: int = 0
    noise: float = 0.02
    time_s: Callable[[Knobs], float] = step_s
    shown: list[str] = field(default_factory=list)

    def run(self, until: Callable[[Tuner], bool], steps: int = 6) -> None:
        """Run until a condition holds."""
        chance = random.Random(self.seed)
        while not until(self.tuner):
            now = self.tuner.now
            self.shown.append(now.kind)
            times = [self.time_s(now.knobs) * math.exp(chance.gauss(0, self.noise)) for _ in range(steps)]
            cut = min(times[:2]) > now.limit_s
            self.tuner.advance(Timing(tuple(times[:2] if cut else times), cut))


def settled(tuner: Tuner) -> bool:
    return tuner.settled


def tuner(
    sampler: str = "random",
    seed: int = 0,
    trials: int = 15,
    first: bool = True,
    start: Knobs = BAD,
    space: Space = GRID,
) -> Tuner:
    point = closed_form(space, STEP_BYTES, RATE, OVERHEAD_S)
    return Tuner(
        start,
        Search(space, lambda: SAMPLERS[sampler](space, seed), trials, (lambda: point) if first else None),
    )


def test_the_closed_form_comes_first_and_the_best_is_measured_again() -> None:
    job = Job(tuner())
    job.run(settled)
    assert job.shown[:2] == ["start", "closed form"]
    assert [number for number, kind in enumerate(job.shown) if kind == "again"] == [6, 12, 18]
    assert job.shown.count("search") + 1 == 15


def test_the_closed_form_can_be_left_out() -> None:
    job = Job(tuner(first=False))
    job.run(settled)
    assert "closed form" not in job.shown


def test_the_closed_form_balances_overhead_and_waiting() -> None:
    best = closed_form(GRID, 100e6, 1e9, 50e-6)
    assert GRID.knobs(best) == Knobs(partition_bytes=1 << 20, credit_bytes=1 << 22)
    smaller = closed_form(GRID, 100e6, 1e9, 50e-8)
    assert smaller[0] < best[0]
    far = SERVER_SPACE.knobs(closed_form(SERVER_SPACE, 1e15, 1e12, 1.0))
    assert far == Knobs(partition_bytes=1 << 24, credit_bytes=1 << 25, chunk_bytes=1 << 19)


def test_a_much_worse_trial_is_cut() -> None:
    job = Job(tuner("grid", start=GRID.knobs((17, 20))))
    job.run(settled)
    first = next(trial for trial in job.tuner.trials if trial.kind == "search")
    assert first.knobs == GRID.knobs((14, 16))  # the smallest of everything
    tried = {trial.knobs for trial in job.tuner.trials if trial.kind == "search"}
    assert tried <= {GRID.knobs((down, across)) for down in range(14, 25) for across in range(16, 26)}
    assert first.measured.cut
    assert len(first.measured.seconds) == 2
    assert first.measured.median_s > CUT * BEST_S
    assert not any(trial.measured.cut for trial in job.tuner.trials if trial.kind == "again")


def test_it_ends_when_nothing_is_to_be_gained() -> None:
    flat = Job(tuner("random", trials=200), time_s=lambda knobs: 0.5, noise=0.001)
    flat.run(settled)
    assert len(flat.tuner.trials) < 20
    assert "expected gain" in flat.tuner.reason


def test_it_ends_after_so_many_trials() -> None:
    job = Job(tuner("random", trials=9))
    job.run(settled)
    assert sum(trial.kind in ("closed form", "search") for trial in job.tuner.trials) == 9


def test_automatic_settings_stay_where_they_are_the_fastest() -> None:
    def time_s(knobs: Knobs) -> float:
        return 0.9 * BEST_S if knobs == Knobs() else step_s(knobs)

    job = Job(tuner(start=Knobs()), time_s=time_s)
    job.run(settled)
    assert job.tuner.best == Knobs()


def test_it_tunes_again_when_steps_take_another_time() -> None:
    now = [1.0]
    job = Job(tuner(), time_s=lambda knobs: now[0] * step_s(knobs))
    job.run(settled)
    trials = len(job.tuner.trials)
    job.run(lambda tuner: len(tuner.trials) == trials + 10)
    assert job.tuner.settled
    now[0] = 1.3
    job.run(lambda tuner: not tuner.settled)
    assert job.tuner.now.kind == "start"
    assert job.tuner.now.knobs == job.tuner.best
    job.run(settled)
    assert len(job.tuner.trials) > trials + 20


def test_it_begins_anew_when_conditions_change_during_the_search() -> None:
    now = [1.0]
    job = Job(tuner(), time_s=lambda knobs: now[0] * step_s(knobs))
    job.run(lambda tuner: tuner.now.kind == "again")
    now[0] = 0.7
    job.run(lambda tuner: tuner.now.kind == "start")
    assert not job.tuner.settled


def test_a_failed_trial_is_passed_over() -> None:
    job = Job(tuner())
    job.run(lambda tuner: tuner.now.kind == "search")
    failed = job.tuner.now.knobs
    job.tuner.advance(Timing(()))
    job.run(settled)
    assert math.isinf(next(trial for trial in job.tuner.trials if trial.knobs == failed).measured.median_s)
    assert job.tuner.best != failed


def test_what_an_earlier_job_found_comes_before_all_else() -> None:
    known = GRID.knobs((18, 21))
    one = Tuner(BAD, Search(GRID, lambda: SAMPLERS["random"](GRID, 0), 15, None, known))
    job = Job(one)
    job.run(lambda tuner: len(tuner.trials) == 2)
    assert [trial.knobs for trial in one.trials] == [BAD, known]
    assert one.trials[1].kind == "known"


def regrets(sampler: str, first: bool) -> list[float]:
    found = []
    for seed in range(5):
        job = Job(tuner(sampler, seed, 15, first), seed)
        job.run(settled)
        found.append(step_s(job.tuner.best) / BEST_S - 1)
    return found


def test_fifteen_trials_come_within_three_percent_of_the_best() -> None:
    found = regrets("bayes", True)
    assert statistics.mean(found) <= 0.03, found


def test_without_the_closed_form_too_and_nearer_than_chance_and_grid() -> None:
    found = regrets("bayes", False)
    assert statistics.mean(found) <= 0.03, found
    assert statistics.mean(found) < statistics.mean(regrets("random", False))
    assert statistics.mean(found) < statistics.mean(regrets("grid", False))


def test_a_narrow_valley_is_found_from_a_wide_plateau() -> None:
    best_s = min(collectives_s(COLLECTIVES.knobs(point)) for point in COLLECTIVES.points())
    found = []
    for seed in range(5):
        job = Job(tuner("bayes", seed, 15, False, space=COLLECTIVES), seed, time_s=collectives_s)
        job.run(settled)
        found.append(collectives_s(job.tuner.best) / best_s - 1)
    assert statistics.mean(found) <= 0.03, found


def test_places_lie_evenly() -> None:
    space = Space((Axis("partition_bytes", 1, 8), Axis("credit_bytes", 14, 21), Axis("chunk_bytes", 1, 2)))
    for seed in range(10):
        taken = space.evenly(8, random.Random(seed))
        assert {point[0] for point in taken} == set(range(1, 9))
        assert {point[1] for point in taken} == set(range(14, 22))
        assert [point[2] for point in taken].count(1) == 4
    assert space.evenly(8, random.Random(0)) != space.evenly(8, random.Random(1))


def test_the_fit_knows_what_it_was_told_and_how_little_that_is() -> None:
    points: Sequence[Point] = [(14, 16), (19, 20), (24, 25)]
    fit = Surrogate(GRID, points, [2.0, 1.0, 3.0])
    mean, deviation = fit.predict([*points, (14, 25)])
    assert mean[:3] == pytest.approx([math.log(2), 0.0, math.log(3)], abs=0.1)
    assert deviation[3] > 3 * deviation[:3].max()
    with pytest.raises(ValueError, match="two"):
        Surrogate(GRID, points[:1], [1.0])


def test_without_torch_optuna_samples_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "torch" else find(name))
    found = regrets("bayes", True)
    assert statistics.mean(found) <= 0.05, found
