"""Trials as tables: one line each, and the surface of step times over two of the sizes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from byteps.diagnostics import duration, size, table
from byteps.tuning import records
from byteps.tuning.space import COLLECTIVE_SPACE, SERVER_SPACE, Space
from byteps.tuning.surrogate import Surrogate
from byteps.tuning.tuner import Trial, medians
from byteps.wire import Knobs

ACROSS, DOWN = "credit_bytes", "partition_bytes"
_FACTOR = 4  # between neighbouring lines and columns of the table, so that it fits a terminal


@dataclass(frozen=True, slots=True)
class Surface:
    """Times of a step over partition and credit, whatever the other sizes were.

    Attributes:
        down, across: Exponents of two of partitions and credits.
        seconds: By (partition, credit): measured there, or as the model has it; empty if nothing can be said.
        measured: Those that were measured: the fastest of several.
    """

    down: Sequence[int]
    across: Sequence[int]
    seconds: Mapping[tuple[int, int], float]
    measured: Mapping[tuple[int, int], float]


def space_of(found: records.Found) -> Space:
    """What was searched."""
    return COLLECTIVE_SPACE if "all-reduce" in found.world else SERVER_SPACE


def surface(found: records.Found) -> Surface:
    """What the trials say about partition and credit."""
    axes = {axis.name: axis for axis in space_of(found).axes}
    space = Space((axes[DOWN], axes[ACROSS]))
    down, across = (range(axis.low, axis.high + 1) for axis in space.axes)
    measured: dict[tuple[int, int], float] = {}
    for knobs, step_s in medians(records.trials(found)).items():
        if (point := space.point(knobs)) is not None:
            place = point[0], point[1]
            measured[place] = min(step_s, measured.get(place, math.inf))
    if len(measured) < 2:
        return Surface(down, across, {}, measured)
    wanted = list(itertools.product(down, across))
    mean, _ = Surrogate(space, list(measured), list(measured.values())).predict(wanted)
    modelled = dict(zip(wanted, map(math.exp, mean), strict=True))
    return Surface(down, across, {**modelled, **measured}, measured)


def lines(found: records.Found) -> Iterator[str]:
    """The whole report."""
    state = f"over: {found.reason}" if found.settled else "not over"
    yield f"model {found.model}, {size(found.step_bytes)} in a step; {found.world}; search {state}"
    yield f"best: {records.describe(Knobs(**found.best))}"
    yield ""
    yield from _trials(
        records.trials(found), Knobs(**found.best), [axis.name for axis in space_of(found).axes]
    )
    yield ""
    yield from _surface(surface(found))


def _trials(trials: Sequence[Trial], best: Knobs, names: Sequence[str]) -> Iterator[str]:
    start_s = trials[0].measured.median_s if trials else math.nan
    header = ["trial", *(name.removesuffix("_bytes") for name in names), "step", "+-", "over start", ""]
    rows = []
    for number, trial in enumerate(trials):
        sizes = records.as_dict(trial.knobs)
        seconds = trial.measured.median_s
        rows.append(
            [
                f"{number} {trial.kind}",
                *(size(sizes[name]) if sizes[name] else "automatic" for name in names),
                duration(seconds) if trial.measured.seconds else "failed",
                duration(trial.measured.noise_s) if trial.measured.seconds else "",
                f"{seconds / start_s:.2f}" if trial.measured.seconds else "",
                "cut" if trial.measured.cut else "best" if trial.knobs == best else "",
            ]
        )
    yield from table(header, rows)


def _surface(what: Surface) -> Iterator[str]:
    if not what.seconds:
        yield "too few trials for a surface"
        return
    step = int(math.log2(_FACTOR))
    across = what.across[::step]
    yield "step over partition (down) and credit (across); in brackets what the model says"
    rows = [
        [size(1 << partition), *(_cell(what, partition, credit, step) for credit in across)]
        for partition in what.down[::step]
    ]
    yield from table(["", *(size(1 << credit) for credit in across)], rows)


def _cell(what: Surface, partition: int, credit: int, step: int) -> str:
    """The fastest that was measured in a cell, else what the model says about its corner."""
    inside = [
        seconds
        for (down, across), seconds in what.measured.items()
        if 0 <= down - partition < step and 0 <= across - credit < step
    ]
    return duration(min(inside)) if inside else f"({duration(what.seconds[partition, credit])})"
