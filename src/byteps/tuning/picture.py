"""Trials as a picture: step time trial by trial, and the surface over partition and credit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from byteps.diagnostics import duration, size
from byteps.tuning import records
from byteps.tuning.report import Surface, surface
from byteps.tuning.tuner import Trial
from byteps.wire import Knobs

_WIDTH, _LEFT, _TOP = 760, 90, 60
_CHART, _CELL_WIDE, _CELL_HIGH = 180, 56, 24
_COLOURS = {"search": "#1b6ca8", "closed form": "#145a32", "known": "#145a32", "start": "#922b21"}
_OTHER = "#707b7c"


def svg(found: records.Found) -> str:
    """An SVG document."""
    trials = [trial for trial in records.trials(found) if trial.measured.seconds]
    what = surface(found)
    height = _TOP + _CHART + 110 + _CELL_HIGH * len(what.down)
    best = records.describe(Knobs(**found.best))
    title = f"{found.world}, {size(found.step_bytes)} in a step; best: {best}"
    shape = f'width="{_WIDTH}" height="{height}" font-family="sans-serif"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {shape}>',
        '<rect width="100%" height="100%" fill="white"/>',
        _text(10, 20, title, "start", 13),
    ]
    parts += _course(trials)
    parts += _map(what, _TOP + _CHART + 70)
    return "\n".join([*parts, "</svg>", ""])


def _course(trials: Sequence[Trial]) -> list[str]:
    """A dot for each trial, and a line for the best so far."""
    parts = [_text(10, _TOP - 14, "time of a step, trial by trial; line: the fastest so far", "start")]
    if not trials:
        return parts
    top_s = max(trial.measured.median_s for trial in trials)
    scale, wide = _CHART / top_s, (_WIDTH - _LEFT - 20) / len(trials)
    for mark in (0.0, 0.5, 1.0):
        down = _TOP + _CHART * (1 - mark)
        parts.append(f'<line x1="{_LEFT}" y1="{down:.1f}" x2="{_WIDTH - 20}" y2="{down:.1f}" stroke="#ddd"/>')
        parts.append(_text(_LEFT - 6, down + 4, duration(mark * top_s) if mark else "0", "end"))
    best_s, line = math.inf, []
    for number, trial in enumerate(trials):
        right = _LEFT + wide * (number + 0.5)
        best_s = min(best_s, trial.measured.median_s)
        line.append(f"{right:.1f},{_TOP + _CHART - best_s * scale:.1f}")
        hint = f"{trial.kind}: {records.describe(trial.knobs)}: {duration(trial.measured.median_s)}"
        parts.append(
            f'<circle cx="{right:.1f}" cy="{_TOP + _CHART - trial.measured.median_s * scale:.1f}" r="4" '
            f'fill="{_COLOURS.get(trial.kind, _OTHER)}"><title>{escape(hint)}</title></circle>'
        )
    parts.append(f'<polyline points="{" ".join(line)}" fill="none" stroke="black"/>')
    for number, (name, colour) in enumerate([*_COLOURS.items(), ("again, tuned", _OTHER)]):
        left = _LEFT + 120 * number
        parts.append(f'<circle cx="{left}" cy="{_TOP + _CHART + 18}" r="4" fill="{colour}"/>')
        parts.append(_text(left + 8, _TOP + _CHART + 22, name, "start"))
    return parts


def _map(what: Surface, top: float) -> list[str]:
    """A field for each partition and credit, dark where steps are long; framed where it was measured."""
    parts = [
        _text(
            10,
            top - 24,
            "ms of a step over partition (down) and credit (across); framed: measured",
            "start",
        )
    ]
    if not what.seconds:
        return [*parts, _text(_LEFT, top, "too few trials", "start")]
    low, high = min(what.seconds.values()), max(what.seconds.values())
    for row, partition in enumerate(what.down):
        down = top + row * _CELL_HIGH
        parts.append(_text(_LEFT - 6, down + 16, size(1 << partition), "end"))
        for column, credit in enumerate(what.across):
            seconds = what.seconds[partition, credit]
            share = math.log(seconds / low) / math.log(high / low) if high > low else 0.0
            frame = ' stroke="black"' if (partition, credit) in what.measured else ""
            left = _LEFT + column * _CELL_WIDE
            parts.append(
                f'<rect x="{left + 1}" y="{down + 1:g}" width="{_CELL_WIDE - 2}" height="{_CELL_HIGH - 2}" '
                f'fill="hsl(210 60% {92 - 52 * share:.0f}%)"{frame}/>'
            )
            parts.append(_text(left + _CELL_WIDE / 2, down + 16, f"{1e3 * seconds:.3g}", "middle", 10))
    for column, credit in enumerate(what.across):
        parts.append(_text(_LEFT + (column + 0.5) * _CELL_WIDE, top - 6, size(1 << credit), "middle", 10))
    return parts


def _text(right: float, down: float, text: str, anchor: str, points: int = 11) -> str:
    place = f'x="{right:.1f}" y="{down:.1f}" text-anchor="{anchor}" font-size="{points}"'
    return f"<text {place}>{escape(text)}</text>"
