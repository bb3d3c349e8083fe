"""Servers with the workers and k servers apart: the bytes at every link, and the time of a step.

Four workers on emulated hosts, each with a server beside it, and 1, 2 and 3 servers on hosts of their own, at
default settings: nobody tells the coordinator which is which. A model that hardly computes trains, so that
links are the limit. With k servers apart, every link is to carry 2n(n-1)/(n^2+kn-2k) times the gradients'
bytes (Jiang et al., OSDI 2020).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from benchmarks.cluster import Cluster
from benchmarks.common import Row, Table, report
from benchmarks.emulated.contest import Contest, Outcome
from benchmarks.emulated.places import COLOCATED, HOSTS, WORKERS
from benchmarks.emulated.profiles import Setting, layers
from byteps.planner.bounds import link_share

SETTING = Setting(0, "vgg16", 20, 156)
APART = (1, 2, 3)
TURNS, STEPS = 3, 6
BYTES, TIME = 3.0, 8.0


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mixed", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--apart", type=int, nargs="+", default=APART, metavar="K", help="servers apart")
    parser.add_argument("--turns", type=int, default=TURNS, help="of each number of servers")
    parser.add_argument(
        "--steps", type=int, default=STEPS, help="of each turn, after those that do not count"
    )
    arguments = parser.parse_args()
    names = {k: f"cross{COLOCATED}, {k} servers" for k in arguments.apart}
    with Cluster(HOSTS, SETTING.rate) as cluster:
        contest = Contest(cluster)
        for name in names.values():
            contest.start(name)
        outcomes = contest.run(SETTING, arguments.turns, arguments.steps).outcomes
        contest.close()
    found = {k: outcomes[name] for k, name in names.items()}
    columns = ("servers apart", "formula", "NIC bytes, most", "least", "formula ms", "step ms", "k alone ms")
    title = f"Mixed placement: {WORKERS} workers with a server each, {SETTING.title}"
    table = Table(columns, [line(k, outcome) for k, outcome in found.items()])
    rows = [row for k, outcome in found.items() for row in verdict(k, outcome)]
    report(title, rows, as_json=arguments.json, table=table)


def line(k: int, outcome: Outcome) -> list[str | float]:
    """What was measured; last, what the servers apart could do at best without those beside the workers."""
    times_s = (formula_s(outcome.share), outcome.time_s(), formula_s(link_share(WORKERS, k)))
    counted = (outcome.share, max(outcome.nbytes), min(outcome.fewest))
    return [str(k), *(f"{value:.3f}" for value in counted), *(f"{1e3 * value:.0f}" for value in times_s)]


def verdict(k: int, outcome: Outcome) -> Sequence[Row]:
    """The figures that have bounds."""
    most, least = max(outcome.nbytes) / outcome.share, min(outcome.fewest) / outcome.share
    time = outcome.time_s() / formula_s(outcome.share)
    return [
        Row(f"{k} apart: busiest interface, above the formula", 100 * (most - 1), BYTES, "%"),
        Row(f"{k} apart: idlest interface, below the formula", 100 * (1 - least), BYTES, "%"),
        Row(f"{k} apart: step, off the formula", 100 * abs(time - 1), TIME, "%"),
    ]


def formula_s(share: float) -> float:
    """Time that the gradients' bytes take, crossing a link that often."""
    return share * sum(layer.nbytes for layer in layers(SETTING.profile, SETTING.compute_s)) / SETTING.goodput


if __name__ == "__main__":
    main()
