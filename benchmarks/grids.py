"""Times of steps over a grid of partition and credit: what a search over all of it measured, in a file."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from byteps.tuning import records
from byteps.tuning.samplers import GRID
from byteps.tuning.space import Point, Space


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


@dataclass(frozen=True, slots=True)
class Cell:
    """All that was measured of a row and system.

    Args:
        name: ``ROW:SYSTEM``.
        grid: The grid.
        start_s, live_s: Time of a step before a live search, and with what that has found.
    """

    name: str
    grid: Grid
    start_s: float
    live_s: float


class _Kept(msgspec.Struct, frozen=True):
    """A cell in a file: ``steps`` has place and times."""

    name: str
    step_bytes: int
    rate: float
    start_s: float
    live_s: float
    steps: list[tuple[Point, list[float]]]


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


def save(path: Path, cells: Sequence[Cell]) -> None:
    """Keep what was measured."""
    kept = [
        _Kept(
            cell.name,
            cell.grid.step_bytes,
            cell.grid.rate,
            cell.start_s,
            cell.live_s,
            [(point, list(times)) for point, times in cell.grid.steps.items()],
        )
        for cell in cells
    ]
    path.write_bytes(msgspec.json.encode(kept))


def load(path: Path, space_of: Callable[[str], Space]) -> list[Cell]:
    """Read what ``save`` wrote.

    Args:
        space_of: What is searched in a cell of that name.
    """
    return [
        Cell(
            one.name,
            Grid(space_of(one.name), dict(one.steps), one.step_bytes, one.rate),
            one.start_s,
            one.live_s,
        )
        for one in msgspec.json.decode(path.read_bytes(), type=list[_Kept])
    ]
