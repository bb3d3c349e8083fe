"""A transformer that really computes: two workers on links of 200 Mbit/s, then on loopback.

On slow links, crossing the barrier must pay; on fast ones it must not cost. CPU time is that of workers and
servers together.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.cluster import Cluster
from benchmarks.common import Row, Table, report
from benchmarks.emulated.contest import LEAD_S, WARM_STEPS
from benchmarks.hosts import Hosts, Loopback
from benchmarks.jobs import Job
from benchmarks.starting import Starter

WORKER = "benchmarks.emulated.transformer"
RATE = "200mbit"
TURNS, STEPS = 5, 8
PAYS, COSTS = 0.9, 1.03


@dataclass
class Turns:
    """What a system did in its turns.

    Args:
        step_s: Time of a step.
        cpu_s: CPU time of a step, all processes together.
    """

    step_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)

    def take(self, job: Job) -> None:
        """One more turn.

        Raises:
            RuntimeError: The ranks' parameters differ.
        """
        before_s = job.worker_cpu_s() + job.server_cpu_s()
        total = WARM_STEPS + STEPS
        answers = job.ask(steps=total, begin=time.monotonic() + LEAD_S)
        self.cpu_s.append((job.worker_cpu_s() + job.server_cpu_s() - before_s) / total)
        moments = [answer["moments"] for answer in answers]
        self.step_s.append(max(m[-1] - m[WARM_STEPS] for m in moments) / STEPS)
        if len({answer["digest"] for answer in answers}) != 1:
            raise RuntimeError(f"{job.name}: the ranks' parameters differ")


def main(words: Sequence[str]) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.emulated compute", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--turns", type=int, default=TURNS, help="of each system")
    arguments = parser.parse_args(words)
    lines: list[list[str | float]] = []
    rows = []
    for place, hosts, bound in ((RATE, Cluster(4, RATE), PAYS), ("loopback", Loopback(), COSTS)):
        found = contest(hosts, arguments.turns)
        for name, turns in found.items():
            times = 1e3 * statistics.median(turns.step_s), 1e3 * statistics.median(turns.cpu_s)
            lines.append([place, name, *(f"{value:.1f}" for value in times)])
        pairs = zip(found["cross"].step_s, found["plain"].step_s, strict=True)
        ratio = statistics.median(ours / plain for ours, plain in pairs)
        rows.append(Row(f"{place}: cross / plain, turn by turn", ratio, bound))
        cpu = statistics.median(found["cross"].cpu_s) / statistics.median(found["ddp"].cpu_s)
        rows.append(Row(f"{place}: CPU time, cross / ddp", cpu))
    table = Table(("links", "system", "ms per step", "CPU ms per step"), lines)
    report("A transformer: 2 workers, 2 servers", rows, as_json=arguments.json, table=table)


def contest(hosts: Hosts, turns: int) -> dict[str, Turns]:
    """All systems by turns."""
    with hosts:
        starter = Starter(hosts)
        jobs = [starter.byteps(kind, WORKER) for kind in ("cross", "plain")] + [starter.gloo("ddp", WORKER)]
        found = {job.name: Turns() for job in jobs}
        for job in jobs:  # which have yet to start
            job.ask(steps=WARM_STEPS, begin=time.monotonic())
        for _ in range(turns):
            for job in jobs:
                found[job.name].take(job)
                print(f"{job.name}: {1e3 * found[job.name].step_s[-1]:.0f} ms", file=sys.stderr)
        for job in jobs:
            job.close()
    return found
