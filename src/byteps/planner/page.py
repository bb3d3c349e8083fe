"""A plan as one page: advice, table, step time over servers and link rates, and what one step does when."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from html import escape

from byteps.diagnostics import duration, size
from byteps.planner.charts import lines, timeline
from byteps.planner.choices import FIFO, SCHEDULED, WITH_WORKERS, Planner
from byteps.planner.planning import Plan

RATES = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Of the link's, at which steps are shown."""
LIMIT = "servers, limit"

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --paper: #fff; --faint: #d8dde5; --soft: #5a6675;
  --s0: #b3261e; --s1: #b26a00; --s2: #1565c0; --s3: #2e7d32; --s4: #6a1b9a; }
@media (prefers-color-scheme: dark) { :root {
  --ink: #e6e9ee; --paper: #14181f; --faint: #333b47; --soft: #9aa5b4;
  --s0: #ff8a80; --s1: #ffb74d; --s2: #64b5f6; --s3: #81c784; --s4: #ce93d8; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 760px;
  margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.4em; } h2 { font-size: 1.1em; margin-top: 2em; } .soft { color: var(--soft); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .25em .5em; border-bottom: 1px solid var(--faint); }
th:first-child, td:first-child { text-align: left; } tr.best td { font-weight: 600; }
svg { width: 100%; height: auto; } svg text { font-size: 11px; fill: var(--soft); }
.grid { stroke: var(--faint); } .line { fill: none; stroke: currentColor; stroke-width: 2; }
.dot { fill: currentColor; } .legend span { margin-right: 1.2em; font-size: .9em; }
.legend i { display: inline-block; width: .8em; height: .8em; margin-right: .4em; background: currentColor; }
.s0 { color: var(--s0); } .s1 { color: var(--s1); } .s2 { color: var(--s2); } .s3 { color: var(--s3); }
.s4 { color: var(--s4); }
"""


def page(plan: Plan) -> str:
    """The page, complete in itself: it asks for nothing else."""
    planner, advice = plan.planner, plan.advice
    profile, cluster = planner.profile, planner.cluster
    title = f"{profile.name} on {cluster.workers} workers, {cluster.link_gbit:g} Gbit/s"
    computing = f"{duration(plan.compute_s)} of computing a step; {profile.origin}"
    words = f"{size(profile.nbytes)} of gradients, {computing}."
    settings = {"partition_bytes": advice.partition_bytes, "credit_bytes": advice.credit_bytes}
    spans = planner.step(
        advice.choice,
        advice.servers,
        {} if advice.choice in (FIFO, SCHEDULED) else settings,
        record=True,
    ).spans
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(words)}</p>',
        "<ul>" + "".join(f"<li>{escape(sentence)}</li>" for sentence in advice.words) + "</ul>",
        _table(plan),
        "<h2>Step time over CPU servers</h2>",
        over_servers(plan),
        "<h2>Step time over link rates</h2>",
        over_rates(planner, advice.choice, advice.servers),
        f"<h2>One step: {escape(advice.choice)}</h2>",
        timeline(spans, [layer.name for layer in profile.layers]),
        '<p class="soft">Colours are layers, from the first (red) to the last (violet).</p>',
    ]
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    viewport = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    return (
        f'<!doctype html>\n<html lang="en"><head>{viewport}{head}</head><body>\n'
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def over_servers(plan: Plan) -> str:
    """A chart: those with servers as a line, all-reduce as level ones beside it."""
    served = [choice for choice in plan.choices if choice.name not in (FIFO, SCHEDULED)]
    places = [choice.servers for choice in served] or [0]
    series = {
        choice.name: [(float(x), 1e3 * choice.step_s) for x in dict.fromkeys((places[0], places[-1]))]
        for choice in plan.choices
        if choice.name in (FIFO, SCHEDULED)
    }
    if served:
        series["servers"] = [(float(choice.servers), 1e3 * choice.step_s) for choice in served]
        series[LIMIT] = [(float(choice.servers), 1e3 * choice.limit_s) for choice in served]
    return lines(series, across="CPU servers", up="ms per step", dashed=LIMIT)


def over_rates(planner: Planner, name: str, servers: int) -> str:
    """A chart: the advised way and its rivals on slower and faster links."""
    ways: dict[str, int] = {FIFO: 0, SCHEDULED: 0}
    if planner.cluster.colocated:
        ways[WITH_WORKERS] = 0
    ways[name] = servers
    series: dict[str, Sequence[tuple[float, float]]] = {}
    for way, count in ways.items():
        points = []
        for factor in RATES:
            rate = factor * planner.cluster.link_gbit
            there = dataclasses.replace(planner, cluster=planner.cluster.at(rate))
            points.append((rate, 1e3 * there.step(way, count).step_s))
        series[way] = points
    return lines(series, across="Gbit/s of each link", up="ms per step", doubling=True)


def _table(plan: Plan) -> str:
    header = ["", "step", "limit", "computing", "samples/s", "epoch, h", "cost"]
    rows = [f"<tr>{''.join(f'<th>{cell}</th>' for cell in header)}</tr>"]
    for choice in plan.choices:
        cells = [
            choice.name,
            duration(choice.step_s),
            duration(choice.limit_s),
            f"{100 * choice.efficiency:.0f} %",
            f"{choice.samples_per_s:.0f}",
            f"{choice.epoch_s / 3600:.2f}" if choice.epoch_s else "-",
            f"{choice.epoch_cost:.2f}" if choice.epoch_cost else "-",
        ]
        best = ' class="best"' if choice.name == plan.advice.choice else ""
        rows.append(f"<tr{best}>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>")
    return "<table>" + "\n".join(rows) + "</table>"
