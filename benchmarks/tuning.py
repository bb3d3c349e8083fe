"""How near does tuning come to the best sizes? Emulated hosts, four settings and one over all-reduce.

For each setting an 8 x 8 grid over partition and credit is measured once, switched live in one job. Searches
from a bad start are then replayed on what was measured, each trial a draw from the steps of its place: tuning
with and without the closed form, chance, and the grid in order, 15 trials each, over 5 seeds. One search runs
live. All parameters must be bit by bit what training without tuning gives.

About six minutes a setting. ``--save FILE`` keeps what was measured; ``--replay FILE`` replays searches on
that in seconds, with nothing measured.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.cluster import Cluster
from benchmarks.common import Row, Table, report
from benchmarks.emulated.contest import LEAD_S, Contest
from benchmarks.emulated.places import ALL_REDUCE, HOSTS, WORKERS
from benchmarks.emulated.profiles import ROWS, Setting
from benchmarks.grids import Cell, Grid, grid_of, load, save
from benchmarks.jobs import Job
from byteps.planner import bounds
from byteps.tuning import records
from byteps.tuning.samplers import GRID, SAMPLERS
from byteps.tuning.space import COLLECTIVE_SPACE, SERVER_SPACE, Axis, Space, closed_form
from byteps.tuning.tuner import Search, Timing, Tuner, medians
from byteps.wire import Knobs

SYSTEMS = ("cross", "allreduce-cross")
CELLS = ("1:cross", "2:cross", "4:cross", "7:cross")
"""Rows of the emulated training, and what trains; see ``setting_of``."""
BESIDE = ("1:allreduce-cross",)
"""Measured too, without bounds: over all-reduce the grids of rows 1 and 4 are less steep than is asked."""
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


def space_of(cell: str) -> Space:
    """What is searched in a cell."""
    return COLLECTIVE_SPACE if cell.partition(":")[2].startswith("allreduce") else SERVER_SPACE


def setting_of(cell: str) -> Setting:
    """What a cell emulates.

    All-reduce moves more bytes over each link. Its links are faster by as much, so that they are busy for as
    long: on the row's own links even the best sizes gain little.
    """
    number, _, system = cell.partition(":")
    setting = ROWS[int(number) - 1]
    more = bounds.link_share(WORKERS, 0) if system in ALL_REDUCE else 1.0
    return replace(setting, rate_mbit=more * setting.rate_mbit)


def measure(contest: Contest, cell: str) -> Cell:
    """The grid of one setting, and a live search."""
    setting = setting_of(cell)
    runner = Runner(contest, setting, cell.partition(":")[2])
    found = runner.search(BYTEPS_TUNE_SEARCH="grid", BYTEPS_TUNE_TRIALS=str(GRID * GRID))
    grid = grid_of(found, space_of(cell), setting.goodput)
    live = runner.search(BYTEPS_TUNE_TRIALS=str(TRIALS), **BAD)
    start_s = live_start_s(live)
    best_s = medians(records.trials(live)).get(Knobs(**live.best), start_s)
    return Cell(cell, grid, start_s, best_s)


def judge(cell: Cell) -> tuple[list[Row], list[list[str | float]]]:
    """Replays all searches: figures with bounds, lines of the table."""
    name, grid = cell.name, cell.grid
    setting, system = setting_of(name), name.partition(":")[2]
    title = f"{setting.number} {setting.title}, {system}"
    steep, near = (None, None) if name in BESIDE else (MEDIAN_OF_BEST, MOST_REGRET)
    rows = [Row(f"{name}: best / median of the grid", grid.best_s / grid.median_s, steep)]
    lines: list[list[str | float]] = []
    for search, (sampler, _) in SEARCHES.items():
        regrets = [replay(grid, search, seed) for seed in range(SEEDS)]
        bound = near if sampler == "bayes" else None
        rows.append(Row(f"{name}: mean regret, {search}", statistics.mean(regrets), bound))
        lines.append([title, search, *_percents(regrets)])
    rows.append(Row(f"{name}: live, time over the grid's best", cell.live_s / grid.best_s))
    lines.append([title, "live", *_live(cell)])
    return rows, lines


def live_start_s(found: records.Found) -> float:
    """Time of a step with the settings that a job began with."""
    return records.trials(found)[0].measured.median_s


def _percents(regrets: Sequence[float]) -> list[str | float]:
    return [f"{100 * statistics.mean(regrets):.1f} %", f"{100 * max(regrets):.1f} %", "", "", ""]


def _live(cell: Cell) -> list[str | float]:
    return ["", "", *(f"{1e3 * time_s:.0f}" for time_s in (cell.start_s, cell.live_s, cell.grid.best_s))]


def _measured(names: Sequence[str], path: Path | None) -> Iterator[Cell]:
    """Measure cells; with a path, save all so far after each."""
    cells: list[Cell] = []
    with Cluster(HOSTS, setting_of(names[0]).rate) as cluster:
        contest = Contest(cluster)
        for name in names:
            cells.append(measure(contest, name))
            if path is not None:
                save(path, cells)
            yield cells[-1]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tuning", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument(
        "--cells",
        default=",".join(CELLS + BESIDE),
        metavar="ROW:SYSTEM,...",
        help=f"systems: {', '.join(SYSTEMS)}",
    )
    parser.add_argument("--save", type=Path, metavar="FILE", help="keep what was measured")
    parser.add_argument(
        "--replay",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="measure nothing: search on what --save has kept",
    )
    arguments = parser.parse_args()
    cells: Iterable[Cell]
    if arguments.replay:
        cells = [cell for path in arguments.replay for cell in load(path, space_of)]
    else:
        cells = _measured(arguments.cells.split(","), arguments.save)
    rows: list[Row] = []
    lines: list[list[str | float]] = []
    for cell in cells:
        more_rows, more_lines = judge(cell)
        rows += more_rows
        lines += more_lines
    columns = ("row", "search", "mean regret", "worst", "start ms", "found ms", "grid's best ms")
    title = f"Tuning: {TRIALS} trials from partition and credit of 16 MiB, {SEEDS} seeds"
    report(title, rows, as_json=arguments.json, table=Table(columns, lines))


if __name__ == "__main__":
    main()
