"""The tuning benchmark's replay: a grid that was measured, and searches on it."""

from __future__ import annotations

import itertools
from pathlib import Path

from benchmarks.grids import Cell, Grid, grid_of, load, save
from benchmarks.tuning import SEARCHES, replay, space_of
from byteps.tuning import records
from byteps.tuning.samplers import GRID, SAMPLERS
from byteps.tuning.space import SERVER_SPACE
from byteps.tuning.tuner import Search, Timing, Tuner
from byteps.wire import Knobs


def step_s(knobs: Knobs) -> float:
    """A valley around partitions of 128 KiB with a credit of 1 MiB."""
    away = abs(knobs.partition_bytes.bit_length() - 18) + abs(knobs.credit_bytes.bit_length() - 21)
    return 0.3 + 0.04 * away


def measured() -> Grid:
    tuner = Tuner(
        Knobs(), Search(SERVER_SPACE, lambda: SAMPLERS["grid"](SERVER_SPACE, 0), GRID * GRID, again_every=0)
    )
    while not tuner.settled:
        seconds = step_s(tuner.now.knobs) if tuner.now.kind != "start" else 0.5
        tuner.advance(Timing((seconds, seconds)))
    lines = [
        records.Line(t.kind, records.as_dict(t.knobs), list(t.measured.seconds), False) for t in tuner.trials
    ]
    found = records.Found(1, "m", "4 workers, 4 servers", 26, 17 << 20, lines, {}, True, "")
    return grid_of(found, SERVER_SPACE, 55e6)


def test_the_whole_grid_is_read() -> None:
    grid = measured()
    assert sorted(grid.steps) == list(itertools.product(range(1, GRID + 1), repeat=2))
    assert grid.place([17, 20]) == min(grid.steps, key=grid.time_s)
    assert grid.best_s < 0.35
    assert grid.median_s > grid.best_s


def test_searches_are_replayed_on_it() -> None:
    grid = measured()
    regrets = {name: replay(grid, name, 1) for name in SEARCHES}
    assert 0 <= regrets["tuning"] <= 0.03
    assert regrets["grid"] > 0.1  # the first 15 of 64 places lie at one edge
    assert all(regret >= 0 for regret in regrets.values())


def test_what_was_measured_is_kept_for_later(tmp_path: Path) -> None:
    cell = Cell("4:cross", measured(), 0.5, 0.31)
    save(tmp_path / "grids", [cell])
    [again] = load(tmp_path / "grids", space_of)
    assert again == cell
    assert replay(again.grid, "random", 3) == replay(cell.grid, "random", 3)
