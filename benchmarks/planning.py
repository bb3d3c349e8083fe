"""What the planner predicts beside what was measured on emulated hosts.

``python -m benchmarks.planning FILE`` reads what ``python -m benchmarks.emulated rows --colocated --servers 2
--modes cross,plain,ddp,allreduce-cross --json`` printed. A line there names its row as
``1 vgg16 332 ms, 440 Mbit/s`` and its system: ``ddp``, ``horovod``, ``allreduce-cross`` or ``allreduce``,
``cross`` or ``plain``, and for the latter two where the sums are made: in four CPU servers, ``, N servers``
for another number of them, ``, colocated`` for servers on the workers' hosts (and ``, N servers`` besides).
Nothing is fitted: computing times and link rates are the nominal ones, settings and overheads byteps's
defaults.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from benchmarks.common import Row, Table, report
from byteps.planner.cluster import Cluster, DataPath
from byteps.planner.profile import FP32_BYTES, Layer, Profile, shipped
from byteps.planner.systems import Rings, Servers

WORKERS = 4
# The emulation divides bytes and rates by this.
SCALE = 32
# One way through the emulated network: two virtual cables and a bridge, on a busy machine.
LATENCY_S = 100e-6
BUCKET_BYTES: Mapping[str, int] = {"ddp": (25 << 20) // SCALE, "horovod": (128 << 20) // SCALE}
MEAN, WORST = 0.03, 0.07
# Systems that differ by less need no order.
APART = 1.05
_ROW = re.compile(r"(\d+) (\w+) ([\d.]+) ms, ([\d.]+) Mbit/s")
_SYSTEM = re.compile(r"(cross|plain)(?P<place>, colocated)?(?:, (?P<count>\d+) servers?)?")
# Whether each crosses the barrier.
ALL_REDUCE: Mapping[str, bool] = {"allreduce": False, "allreduce-cross": True}


@dataclass(frozen=True, slots=True)
class Pair:
    """A step's time, measured and predicted.

    Args:
        row, system: What was measured, in the words of the emulation.
        measured_s, predicted_s: Seconds.
    """

    row: str
    system: str
    measured_s: float
    predicted_s: float

    @property
    def error(self) -> float:
        """Of the prediction, as a share of what was measured."""
        return self.predicted_s / self.measured_s - 1


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planning", description=__doc__)
    parser.add_argument(
        "results", type=Path, nargs="+", metavar="FILE", help="JSON of benchmarks.emulated rows"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    arguments = parser.parse_args()
    contents = [json.loads(path.read_text(encoding="utf-8")) for path in arguments.results]
    pairs = compare(line for content in contents for line in content["table"])
    table = Table(
        ("row", "system", "measured ms", "predicted ms", "error %"),
        [
            [
                p.row,
                p.system,
                f"{1e3 * p.measured_s:.0f}",
                f"{1e3 * p.predicted_s:.0f}",
                f"{100 * p.error:+.1f}",
            ]
            for p in pairs
        ],
    )
    report("Planner against emulated training", verdict(pairs), as_json=arguments.json, table=table)


def compare(lines: Iterable[Mapping[str, Any]]) -> list[Pair]:
    """Predict what was measured; systems that the planner does not know are left out."""
    pairs = []
    for line in lines:
        predicted_s = predict(str(line["row"]), str(line["system"]))
        if predicted_s is not None:
            measured_s = float(line["ms per step"]) / 1e3
            pairs.append(Pair(str(line["row"]), str(line["system"]), measured_s, predicted_s))
    return pairs


def predict(row: str, system: str) -> float | None:
    """Time of a step, seconds; None for a system that the planner does not know.

    Raises:
        ValueError: The row is not named as the emulation names them.
    """
    found = _ROW.fullmatch(row)
    if found is None:
        raise ValueError(f"{row!r} is no row of benchmarks.emulated")
    profile = emulated(shipped(found[2], float(found[3]) / 1e3))
    machines = Cluster(
        workers=WORKERS,
        servers=WORKERS,
        link_gbit=float(found[4]) / 1e3,
        latency_s=LATENCY_S,
        colocated=False,
    )
    if system in BUCKET_BYTES:
        path = DataPath(fusion_bytes=BUCKET_BYTES[system])
        return Rings(scheduled=False).simulate(profile, machines, path, crosses=False).step_s
    if system in ALL_REDUCE:
        rings = Rings(scheduled=True)
        size = rings.partition_bytes(profile, machines, DataPath())
        path = DataPath(partition_bytes=size, fusion_bytes=size)
        return rings.simulate(profile, machines, path, crosses=ALL_REDUCE[system]).step_s
    named = _SYSTEM.fullmatch(system)
    if named is None:
        return None
    crosses = named[1] == "cross"
    colocated = named["place"] is not None
    count = int(named["count"] or (0 if colocated else WORKERS))
    machines = dataclasses.replace(machines, colocated=colocated)
    return Servers(count).simulate(profile, machines, DataPath(), crosses=crosses).step_s


def emulated(profile: Profile) -> Profile:
    """The model with tensors of 1/``SCALE``."""
    layers = [
        Layer(
            layer.name,
            tuple(FP32_BYTES * max(1, round(nbytes / FP32_BYTES / SCALE)) for nbytes in layer.tensors),
            layer.forward_s,
            layer.backward_s,
        )
        for layer in profile.layers
    ]
    return dataclasses.replace(profile, layers=tuple(layers))


def verdict(pairs: Sequence[Pair]) -> list[Row]:
    """Errors and order."""
    errors = [abs(pair.error) for pair in pairs]
    worst = max(pairs, key=lambda pair: abs(pair.error))
    wrong = out_of_order(pairs)
    named = f": {'; '.join(wrong)}" if wrong else ""
    return [
        Row("mean error", 100 * statistics.mean(errors), 100 * MEAN, "%"),
        Row(f"worst error: row {worst.row.split()[0]}, {worst.system}", 100 * max(errors), 100 * WORST, "%"),
        Row(f"pairs in the wrong order, of those more than 5 % apart{named}", len(wrong), 0),
    ]


def out_of_order(pairs: Sequence[Pair]) -> list[str]:
    """Systems of one row that clearly differ, and of which the planner calls the wrong one faster."""
    return [
        f"row {one.row.split()[0]}, {one.system} and {two.system}"
        for one, two in combinations(pairs, 2)
        if one.row == two.row
        and max(one.measured_s, two.measured_s) > APART * min(one.measured_s, two.measured_s)
        and (one.measured_s > two.measured_s) != (one.predicted_s > two.predicted_s)
    ]


if __name__ == "__main__":
    main()
