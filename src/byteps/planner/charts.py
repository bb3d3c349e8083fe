"""Charts as SVG that takes its colours from the page it stands in."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape

from byteps.planner.step import Span

WIDTH, HEIGHT = 720, 300
LEFT, RIGHT, TOP, BOTTOM = 60, 14, 14, 44
LANE = 30
LANES = ("backward", "push", "result", "forward")
Points = Sequence[tuple[float, float]]


def ticks(high: float) -> list[float]:
    """Round numbers from 0 to just above ``high``, four to seven where that can be."""
    step = 10 ** math.floor(math.log10(high / 4)) if high > 0 else 1.0
    step *= next(factor for factor in (1, 2, 5, 10) if high / (step * factor) <= 6)
    return [step * number for number in range(math.ceil(high / step) + 1)]


def lines(
    series: Mapping[str, Points], *, across: str, up: str, dashed: str = "", doubling: bool = False
) -> str:
    """Lines with a dot for each value, and a legend.

    Args:
        series: Points of each line, by its name; all have the same horizontal values, or a part of them.
        across, up: What the axes show, with the unit.
        dashed: The name of a line that is dashed.
        doubling: Each horizontal value is about twice the one before; they get equal room.
    """
    places = sorted({x for points in series.values() for x, _ in points})
    marks = ticks(max(y for points in series.values() for _, y in points))
    near: Callable[[float], float] = math.log2 if doubling else float
    low, high = near(places[0]), near(places[-1])

    def place(x: float, y: float) -> tuple[float, float]:
        share = (near(x) - low) / (high - low) if high > low else 0.5
        right = LEFT + share * (WIDTH - LEFT - RIGHT)
        return right, HEIGHT - BOTTOM - y / marks[-1] * (HEIGHT - TOP - BOTTOM)

    parts = [_grid(place(places[0], mark)[1], f"{mark:g}") for mark in marks]
    shown = places if len(places) <= 14 else places[:: -(-len(places) // 14)]
    parts += [_text(place(x, 0)[0], HEIGHT - BOTTOM + 16, f"{x:g}", "middle") for x in shown]
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, across, "middle"))
    parts.append(_text(4, TOP - 2, up, "start"))
    for number, (name, points) in enumerate(series.items()):
        corners = [place(x, y) for x, y in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
        dashes = ' stroke-dasharray="6 4"' if name == dashed else ""
        parts.append(f'<polyline class="line s{number}" points="{path}"{dashes}/>')
        for (x, y), (right, down) in zip(points, corners, strict=True):
            hint = f"<title>{x:g}: {y:.4g}</title>"
            parts.append(
                f'<circle class="dot s{number}" cx="{right:.1f}" cy="{down:.1f}" r="3">{hint}</circle>'
            )
    return _legend(list(series)) + _svg(HEIGHT, parts)


def timeline(spans: Sequence[Span], names: Sequence[str]) -> str:
    """What was done when, a lane for each kind, coloured by layer.

    Args:
        spans: Of one step.
        names: Of the layers.
    """
    marks = ticks(1e3 * max(span.end_s for span in spans))
    height = TOP + LANE * len(LANES) + BOTTOM
    scale = (WIDTH - LEFT - RIGHT) / marks[-1]
    parts = [_text(LEFT - 6, TOP + LANE * (lane + 0.6), name, "end") for lane, name in enumerate(LANES)]
    for span in spans:
        if (span.end_s - span.begin_s) * 1e3 * scale < 0.05:
            continue  # too short to be seen
        hue = round(300 * span.layer / max(1, len(names) - 1))
        left, wide = LEFT + 1e3 * span.begin_s * scale, 1e3 * (span.end_s - span.begin_s) * scale
        top = TOP + LANE * LANES.index(span.lane) + 3
        hint = f"{escape(names[span.layer])}: {1e3 * span.begin_s:.1f} to {1e3 * span.end_s:.1f} ms"
        parts.append(
            f'<rect x="{left:.1f}" y="{top}" width="{max(wide, 0.3):.2f}" height="{LANE - 6}" '
            f'fill="hsl({hue} 60% 52%)"><title>{span.lane}, {hint}</title></rect>'
        )
    for mark in marks:
        parts.append(_text(LEFT + mark * scale, height - BOTTOM + 16, f"{mark:g}", "middle"))
    parts.append(_text((LEFT + WIDTH) / 2, height - 8, "ms from the begin of the backward pass", "middle"))
    return _svg(height, parts)


def _legend(names: Sequence[str]) -> str:
    entries = [f'<span><i class="s{number}"></i>{escape(name)}</span>' for number, name in enumerate(names)]
    return f'<p class="legend">{"".join(entries)}</p>'


def _svg(height: float, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img">\n' + "\n".join(parts) + "\n</svg>"


def _grid(down: float, label: str) -> str:
    line = f'<line class="grid" x1="{LEFT}" y1="{down:.1f}" x2="{WIDTH - RIGHT}" y2="{down:.1f}"/>'
    return line + _text(LEFT - 6, down + 4, label, "end")


def _text(right: float, down: float, text: str, anchor: str) -> str:
    return f'<text x="{right:.1f}" y="{down:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
