"""How near does tuning come to the best sizes? Emulated hosts, four settings, from a bad start.

For each setting an 8 x 8 grid over partition and credit is measured once, switched live in one job. Searches
are then replayed on what was measured, each trial a draw from the steps of its place: tuning with and without
the closed form, chance, and the grid in order, 15 trials each, over 5 seeds. One search runs live. All
parameters must be bit by bit what training without tuning gives.

About six minutes a setting.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cluster import Cluster
from benchmarks.common import Row, Table, report
from benchmarks.emulated.contest import LEAD_S, Contest
from benchmarks.emulated.places import HOSTS
from benchmarks.emulated.profiles import ROWS, Setting
from benchmarks.jobs import Job
from byteps.tuning import records
from byteps.tuning.samplers import GRID, SAMPLERS
from byteps.tuning.space import COLLECTIVE_SPACE, SERVER_SPACE, Axis, Point, Space, closed_form
from byteps.tuning.tuner import Search, Timing, Tuner, medians
from byteps.wire import Knobs

SYSTEMS = ("cross", "allreduce-cross")
CELLS = ("4:cross", "1:cross", "7:cross", "4:allreduce-cross")
"""Rows of the emulated training, and what trains."""
TRIALS, SEEDS, WINDOW = 15, 5, 6
STEPS = 40
MOST_STEPS = 4000
BAD = {"BYTEPS_PARTITION_BYTES": "16MiB", "BYTEPS_COLLECTIVE_BYTES": "16MiB", "BYTEPS_CREDIT_BYTES": "16MiB"}
MOST_REGRET, MEDIAN_OF_BEST = 0.03, 0.8
OVERHEAD_S = 50e-6

REPLAYED = Space((Axis("partition_bytes", 1, GRID), Axis("credit_bytes", 1, GRID)))
"""The grid's places by number."""
SEARCHES: Mapping[str, tuple[str, bool]] = {
    "tuning": ("bayes", True),
    "without the closed form": ("bayes", False),
    "random": ("random", False),
    "grid": ("grid", False),
}


@dataclass(frozen=True, slots=True)
class Grid:
    """What was measured of a setting.

    Args:
        space: The product's.
        steps: Times of steps by place, counted from 1.
        step_bytes: Of all tensors.
        rate: Bytes per second of a link.
    """

    space: Space
    steps: Mapping[Point, Sequence[float]]
    step_bytes: int
    rate: float

    def time_s(self, point: Point) -> float:
        """Median time of a step."""
        return statistics.median(self.steps[point])

    @property
    def best_s(self) -> float:
        """The fastest place's."""
        return min(map(self.time_s, self.steps))

    @property
    def median_s(self) -> float:
        """The median place's."""
        return statistics.median(map(self.time_s, self.steps))

    def place(self, exponents: Sequence[int]) -> Point:
        """The number of the place nearest to some exponents of partition and credit."""
        return tuple(
            min(range(len(spread)), key=lambda number: abs(spread[number] - each)) + 1
            for spread, each in zip(self._spreads(), exponents, strict=False)
        )

    def _spreads(self) -> list[list[int]]:
        return [axis.spread(GRID) for axis in self.space.axes[:2]]


def grid_of(found: records.Found, space: Space, rate: float) -> Grid:
    """The grid that a search over it has measured."""
    empty = Grid(space, {}, found.step_bytes, rate)
    steps: dict[Point, list[float]] = {}
    for trial in records.trials(found):
        knobs = trial.knobs
        if trial.kind == "search" and trial.measured.seconds:
            sizes = (knobs.partition_bytes, knobs.credit_bytes)
            place = empty.place([round(math.log2(each)) for each in sizes])
            steps.setdefault(place, []).extend(trial.measured.seconds)
    return Grid(space, steps, found.step_bytes, rate)


def replay(grid: Grid, search: str, seed: int) -> float:
    """The regret of a search from the bad start: its choice's time over the best one's, less 1."""
    sampler, first = SEARCHES[search]
    form = grid.place(closed_form(grid.space, grid.step_bytes, grid.rate, OVERHEAD_S))
    chance = random.Random(seed)
    start = REPLAYED.knobs(grid.place([24, 24]))
    made = (lambda: form) if first else None
    tuner = Tuner(start, Search(REPLAYED, lambda: SAMPLERS[sampler](REPLAYED, seed), TRIALS, made))
    while not tuner.settled:
        point = REPLAYED.point(tuner.now.knobs)
        assert point is not None
        times = chance.choices(grid.steps[point], k=WINDOW)
        cut = min(times[:2]) > tuner.now.limit_s
        tuner.advance(Timing(tuple(times[:2] if cut else times), cut))
    chosen = REPLAYED.point(tuner.best)
    assert chosen is not None
    return grid.time_s(chosen) / grid.best_s - 1


class Runner:
    """Trains on emulated hosts with tuning on.

    Args:
        contest: The hosts.
        setting: What is emulated.
        system: What trains.
    """

    def __init__(self, contest: Contest, setting: Setting, system: str) -> None:
        self._contest = contest
        self._setting = setting
        self._system = system

    def search(self, **settings: str) -> records.Found:
        """One job with a search, until that is over.

        Raises:
            RuntimeError: The parameters are wrong, or the search does not end.
        """
        with tempfile.TemporaryDirectory() as folder:
            variables = {
                "BYTEPS_TUNE": "1",
                "BYTEPS_TUNE_RESULTS": folder,
                "BYTEPS_TUNE_WINDOW": str(WINDOW),
                **settings,
            }
            name = f"{self._system}, {settings.get('BYTEPS_TUNE_SEARCH', 'bayes')}"
            self._contest.shape(self._setting)
            self._contest.start(name, self._system, variables)
            job = self._contest.jobs.pop(name)
            try:
                return self._train(job, Path(folder))
            finally:
                job.close()

    def _train(self, job: Job, folder: Path) -> records.Found:
        setting = self._setting
        job.ask(do="prepare", profile=setting.profile, compute_s=setting.compute_s)
        for taken in range(0, MOST_STEPS, STEPS):
            job.ask(do="train", steps=STEPS, begin=time.monotonic() + LEAD_S)
            found = [records.load(path) for path in folder.glob("*.json")]
            tried = len(found[0].trials) if found else 0
            print(f"{setting.title}, {job.name}: {taken + STEPS} steps, {tried} trials", file=sys.stderr)
            if found and found[0].settled:
                if not all(job.ask(do="check")):
                    raise RuntimeError(f"{setting.title}, {job.name}: the parameters are wrong")
                return found[0]
        raise RuntimeError(f"{setting.title}: the search is not over after {MOST_STEPS} steps")


def measure(contest: Contest, cell: str) -> tuple[list[Row], list[list[str | float]], Grid]:
    """Everything about one setting: figures with bounds, lines of the table."""
    number, _, system = cell.partition(":")
    setting = ROWS[int(number) - 1]
    space = COLLECTIVE_SPACE if system.startswith("allreduce") else SERVER_SPACE
    runner = Runner(contest, setting, system)
    found = runner.search(BYTEPS_TUNE_SEARCH="grid", BYTEPS_TUNE_TRIALS=str(GRID * GRID))
    grid = grid_of(found, space, setting.goodput)
    live = runner.search(BYTEPS_TUNE_TRIALS=str(TRIALS), **BAD)
    rows = [Row(f"{cell}: best / median of the grid", grid.best_s / grid.median_s, MEDIAN_OF_BEST)]
    lines: list[list[str | float]] = []
    for name in SEARCHES:
        regrets = [replay(grid, name, seed) for seed in range(SEEDS)]
        bound = MOST_REGRET if SEARCHES[name][0] == "bayes" else None
        rows.append(Row(f"{cell}: mean regret, {name}", statistics.mean(regrets), bound))
        lines.append([f"{number} {setting.title}, {system}", name, *_percents(regrets)])
    times = medians(records.trials(live))
    start_s = live_start_s(live)
    best_s = times.get(Knobs(**live.best), start_s)
    rows.append(Row(f"{cell}: live, time over the grid's best", best_s / grid.best_s))
    lines.append([f"{number} {setting.title}, {system}", "live", *_live(start_s, best_s, grid)])
    return rows, lines, grid


def live_start_s(found: records.Found) -> float:
    """Time of a step with the settings that a job began with."""
    return records.trials(found)[0].measured.median_s


def _percents(regrets: Sequence[float]) -> list[str | float]:
    return [f"{100 * statistics.mean(regrets):.1f} %", f"{100 * max(regrets):.1f} %", "", "", ""]


def _live(start_s: float, best_s: float, grid: Grid) -> list[str | float]:
    return ["", "", f"{1e3 * start_s:.0f}", f"{1e3 * best_s:.0f}", f"{1e3 * grid.best_s:.0f}"]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tuning", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument(
        "--cells", default=",".join(CELLS), metavar="ROW:SYSTEM,...", help=f"systems: {', '.join(SYSTEMS)}"
    )
    arguments = parser.parse_args()
    rows: list[Row] = []
    lines: list[list[str | float]] = []
    cells = arguments.cells.split(",")
    with Cluster(HOSTS, ROWS[int(cells[0].partition(":")[0]) - 1].rate) as cluster:
        contest = Contest(cluster)
        for cell in cells:
            more_rows, more_lines, _ = measure(contest, cell)
            rows += more_rows
            lines += more_lines
    columns = ("row", "search", "mean regret", "worst", "start ms", "found ms", "grid's best ms")
    title = f"Tuning: {TRIALS} trials from partition and credit of 16 MiB, {SEEDS} seeds"
    report(title, rows, as_json=arguments.json, table=Table(columns, lines))


if __name__ == "__main__":
    main()
