"""A bar chart as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

COLOURS = ("#1b6ca8", "#7fb3d5", "#145a32", "#7dcea0", "#b9770e", "#922b21", "#5b2c6f", "#707b7c")
BAR, GAP, LEFT, WIDTH, TOP = 11, 10, 250, 420, 64


def bars(title: str, groups: Sequence[tuple[str, Mapping[str, float]]]) -> str:
    """Horizontal bars from 0 to 1, in groups.

    Args:
        title: Above the chart.
        groups: Each with its label and the value of each series that it has.
    """
    names = list(dict.fromkeys(name for _, values in groups for name in values))
    colours = dict(zip(names, COLOURS, strict=False))
    height = TOP + sum(BAR * len(values) + GAP for _, values in groups)
    parts = [_text(10, 20, title, size=14)]
    for number, name in enumerate(names):
        left = 10 + 150 * number
        parts += [_bar(left, 32, BAR, colours[name]), _text(left + BAR + 5, 41, name)]
    top = TOP
    for label, values in groups:
        parts.append(_text(10, top + (BAR * len(values) + BAR) / 2, label))
        for name, value in values.items():
            parts.append(_bar(LEFT, top, WIDTH * value, colours[name]))
            parts.append(_text(LEFT + WIDTH * value + 4, top + BAR - 2, f"{value:.2f}", size=9))
            top += BAR
        top += GAP
    x = LEFT + WIDTH
    parts.append(
        f'<line x1="{x}" y1="{TOP - 6}" x2="{x}" y2="{height}" stroke="black" stroke-dasharray="3"/>'
    )
    width = max(LEFT + WIDTH + 60, 160 * len(names))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif">'
    )
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>", ""])


def _bar(x: float, y: float, width: float, colour: str) -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width:.1f}" height="{BAR - 1}" fill="{colour}"/>'


def _text(x: float, y: float, text: str, size: int = 11) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}">{escape(text)}</text>'
