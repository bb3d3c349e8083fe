"""Eight settings of published models: how near byteps comes to what links and computing allow, beside peers.

Four workers and four servers, each on a host of its own, or with ``, colocated`` the servers on the workers'
hosts. On each row all systems are started and take turns.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.cluster import Cluster
from benchmarks.common import Row, Table, report
from benchmarks.emulated.chart import bars
from benchmarks.emulated.contest import Contest, Trial
from benchmarks.emulated.places import ALL_REDUCE, COLOCATED, HOSTS, RINGS
from benchmarks.emulated.profiles import ROWS
from benchmarks.emulated.systems import SYSTEMS
from benchmarks.peers.environments import PeerMissing

MODES = ("cross", "plain", "ddp", "horovod")
TURNS, STEPS = 3, 6
OF_LIMIT = 0.95
# A step cannot be faster than the limit, but for the error of measuring.
BELIEVABLE = 1.01
OF_DDP, OF_DDP_ON = 1.02, {1: 0.92, 2: 0.92, 4: 0.92}
# Of byteps's other adapters, over its own for torch.
FRAMEWORKS, OF_TORCH = ("tensorflow", "jax"), 1.10
# Of byteps over all-reduce, crossing the barrier.
OF_RINGS_LIMIT, RINGS_OF_DDP_ON = 0.93, {1: 0.88, 2: 0.88, 4: 0.88}
COLUMNS = (
    "row",
    "system",
    "ms per step",
    "limit ms",
    "T*/T",
    "FIFO's share",
    "FIFO/T",
    "NIC bytes",
    "expected",
    "over ddp",
    "gloo's ring",
    "worker CPU s",
    "server CPU s",
)


def main(words: Sequence[str]) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.emulated rows", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--rows", default="1,2,3,4,5,6,7,8", metavar="N,N", help="numbers of rows")
    parser.add_argument(
        "--framework",
        choices=FRAMEWORKS,
        help="plain training in this framework, beside torch's, and no more",
    )
    parser.add_argument("--modes", default=",".join(MODES), help=f"of {', '.join(SYSTEMS)}")
    parser.add_argument(
        "--colocated", action="store_true", help="byteps also with its servers on the workers' hosts"
    )
    parser.add_argument(
        "--servers", type=int, metavar="K", help="byteps also with K servers on hosts of their own"
    )
    parser.add_argument("--turns", type=int, default=TURNS, help="of each system")
    parser.add_argument(
        "--steps", type=int, default=STEPS, help="of each turn, after those that do not count"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw a bar chart")
    arguments = parser.parse_args(words)
    settings = [ROWS[int(number) - 1] for number in arguments.rows.split(",")]
    with Cluster(HOSTS, settings[0].rate) as cluster:
        places = [COLOCATED] * arguments.colocated
        if arguments.servers:
            places.append(f", {arguments.servers} servers")
        trials = []
        for setting in settings:
            # Jobs of their own: tensors that an earlier model has left would make partitions larger.
            contest = Contest(cluster)
            framework = arguments.framework
            modes = ["plain", framework] if framework else arguments.modes.split(",")
            start(contest, modes, places)
            trials.append(contest.run(setting, arguments.turns, arguments.steps))
            contest.close()
    if arguments.plot:
        arguments.plot.write_text(plot(trials), encoding="utf-8")
    table = Table(COLUMNS, [line(trial, name) for trial in trials for name in trial.outcomes])
    verdicts = [row for trial in trials for row in verdict(trial)]
    title = "Emulated training: 4 workers, 4 servers, bytes and links of 1/32"
    report(title, verdicts, as_json=arguments.json, table=table)


def start(contest: Contest, modes: Sequence[str], places: Sequence[str]) -> None:
    """Start what was asked for, byteps's servers also at other places. A peer not installed is left out."""
    for mode in modes:
        try:
            contest.start(mode)
        except PeerMissing as missing:
            print(f"left out: {missing}", file=sys.stderr)
        for place in [] if mode in RINGS else places:
            contest.start(mode + place)


def line(trial: Trial, name: str) -> list[str | float]:
    """What one system did, as a line of the table."""
    outcome = trial.outcomes[name]
    time_s, limit_s, fifo_s = outcome.time_s(), trial.limit_s(name), trial.fifo_s(name)
    ddp = trial.outcomes.get("ddp")
    return [
        f"{trial.setting.number} {trial.setting.title}",
        name,
        f"{1e3 * time_s:.0f}",
        f"{1e3 * limit_s:.0f}",
        limit_s / time_s,
        limit_s / fifo_s,
        fifo_s / time_s,
        max(outcome.nbytes),
        outcome.share,
        time_s / ddp.time_s() if ddp else "",
        trial.ring if name in ALL_REDUCE else "",
        sum(outcome.worker_cpu_s) / len(outcome.worker_cpu_s),
        sum(outcome.server_cpu_s) / len(outcome.server_cpu_s),
    ]


def verdict(trial: Trial) -> list[Row]:
    """The figures of one row that have bounds."""
    number, outcomes, rows = trial.setting.number, trial.outcomes, []
    for name, outcome in outcomes.items():
        of_limit = trial.limit_s(name) / outcome.time_s()
        rows.append(Row(f"row {number}: {name}, T*/T is believable", of_limit, BELIEVABLE))
        if name == "cross":
            rows.append(Row(f"row {number}: {name}, T*/T", of_limit, OF_LIMIT, least=True))
        if name == "plain":
            of_fifo = trial.fifo_s(name) / outcome.time_s()
            rows.append(Row(f"row {number}: {name}, FIFO bound / T", of_fifo, OF_LIMIT, least=True))
        if name in FRAMEWORKS and "plain" in outcomes:
            over = outcome.time_s() / outcomes["plain"].time_s()
            rows.append(Row(f"row {number}: {name} / plain", over, OF_TORCH))
        if name == "allreduce-cross":
            rows.append(Row(f"row {number}: {name}, T*/T", of_limit, OF_RINGS_LIMIT, least=True))
            rows.append(Row(f"row {number}: gloo's own ring, share of the links' goodput", trial.ring))
        if name == "allreduce-cross" and "ddp" in outcomes:
            over = outcome.time_s() / outcomes["ddp"].time_s()
            rows.append(Row(f"row {number}: {name} / ddp", over, RINGS_OF_DDP_ON.get(number, OF_DDP)))
        if name == "cross" + COLOCATED and "ddp" in outcomes:
            over = outcome.time_s() / outcomes["ddp"].time_s()
            rows.append(Row(f"row {number}: {name} / ddp", over, OF_DDP_ON.get(number, OF_DDP)))
    return rows


def plot(trials: Sequence[Trial]) -> str:
    """Each system's share of its own limit, row by row."""
    groups = [
        (
            f"{trial.setting.number} {trial.setting.title}",
            {name: trial.limit_s(name) / outcome.time_s() for name, outcome in trial.outcomes.items()},
        )
        for trial in trials
    ]
    return bars("Share of the limit (1: no order of sending could be faster)", groups)
