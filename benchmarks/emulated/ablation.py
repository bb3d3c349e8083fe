"""What each part of the scheduler gains: first come first served, partition, priority, credit, crossing.

Each line adds one part to the line before. With everything off, byteps may cost next to nothing over calls of
push_pull that a script makes by hand.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.cluster import Cluster
from benchmarks.common import Row, Table, report
from benchmarks.emulated.contest import Contest, Trial
from benchmarks.emulated.places import HOSTS
from benchmarks.emulated.profiles import ROWS, Setting

NUMBERS = (1, 5)
TURNS, STEPS = 3, 6
COSTS = 1.02
# Larger than any tensor, and than all of them together.
WHOLE = {"BYTEPS_PARTITION_BYTES": str(64 << 20)}
UNBOUNDED = {"BYTEPS_CREDIT_BYTES": str(1 << 30)}
FIFO = {"BYTEPS_SCHEDULING": "fifo"}


@dataclass(frozen=True, slots=True)
class Variant:
    """A job to compare.

    Args:
        name: What it adds to the one before.
        kind: Its system.
        settings: Its variables.
    """

    name: str
    kind: str
    settings: Mapping[str, str]


VARIANTS = (
    Variant("push_pull by hand", "push-pull", {**FIFO, **WHOLE, **UNBOUNDED}),
    Variant("everything off", "plain", {**FIFO, **WHOLE, **UNBOUNDED}),
    Variant("+ partition", "plain", {**FIFO, **UNBOUNDED}),
    Variant("+ priority", "plain", UNBOUNDED),
    Variant("+ credit", "plain", {}),
    Variant("+ crossing", "cross", {}),
)


def main(words: Sequence[str]) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.emulated ablation", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--turns", type=int, default=TURNS, help="of each variant")
    arguments = parser.parse_args(words)
    settings = [ROWS[number - 1] for number in NUMBERS]
    with Cluster(HOSTS, settings[0].rate) as cluster:
        trials = [measure(cluster, setting, arguments.turns) for setting in settings]
    table = Table(
        ("row", "variant", "ms per step", "T*/T", "over the one before"),
        [line for trial in trials for line in lines(trial)],
    )
    report("What each part gains", [cost(trial) for trial in trials], as_json=arguments.json, table=table)


def measure(cluster: Cluster, setting: Setting, turns: int) -> Trial:
    """One row, in jobs of its own: an earlier row's tensors would make partitions larger."""
    contest = Contest(cluster)
    for variant in VARIANTS:
        contest.start(variant.name, variant.kind, variant.settings)
    trial = contest.run(setting, turns, STEPS)
    contest.close()
    return trial


def lines(trial: Trial) -> list[list[str | float]]:
    """One row's variants, as lines of the table."""
    found: list[list[str | float]] = []
    before_s = None
    for name, outcome in trial.outcomes.items():
        time_s = outcome.time_s()
        ratio = time_s / before_s if before_s else ""
        row = f"{trial.setting.number} {trial.setting.title}"
        found.append([row, name, f"{1e3 * time_s:.0f}", trial.limit_s(name) / time_s, ratio])
        before_s = time_s
    return found


def cost(trial: Trial) -> Row:
    """What the optimizer's own machinery costs where it has nothing to gain."""
    by_hand, off = (trial.outcomes[variant.name].time_s() for variant in VARIANTS[:2])
    return Row(f"row {trial.setting.number}: everything off / push_pull by hand", off / by_hand, COSTS)
