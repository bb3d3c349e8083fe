"""Is crossing the barrier ever slower? Nine models, four link rates each, servers apart or with the workers.

Rates are multiples of the one at which the gradients' bytes take as long as the computing. Each result is a
line of a file, so a sweep that was broken off goes on where it was. A cell where ``cross`` is slower than the
best of DDP and ``plain`` by more than the bound is repeated three times, by turns, and the median counts.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.cluster import Cluster
from benchmarks.common import Row, Table, report
from benchmarks.emulated.contest import Contest
from benchmarks.emulated.places import COLOCATED, HOSTS
from benchmarks.emulated.profiles import GOODPUT, Setting, layers

# Computing time of a step, milliseconds, so that rates of different models are alike.
COMPUTE_MS: Mapping[str, float] = {
    "vgg16": 332,
    "alexnet": 150,
    "resnet50": 202,
    "bert_base": 230,
    "bert_large": 678,
    "gpt2_small": 260,
    "gpt2_medium": 700,
    "transformer_base": 140,
    "transformer_big": 420,
}
MULTIPLES = (0.5, 1.0, 2.0, 4.0)
PLACEMENTS = ("", COLOCATED)
STEPS, REPEATS = 6, 3
NEVER_SLOWER, BEST_GAIN = 1.02, 2.8
SERIAL = "serial-ps"


@dataclass(frozen=True, slots=True)
class Cell:
    """One result.

    Args:
        profile: The model.
        multiple: Of the rate at which bytes and computing take as long.
        placement: Of the servers, as it ends a job's name.
        times_s: Time of a step of each system, without the placement.
        turns: How many turns the times are medians of.
    """

    profile: str
    multiple: float
    placement: str
    times_s: Mapping[str, float]
    turns: int

    @property
    def key(self) -> tuple[str, float, str]:
        """What was measured."""
        return self.profile, self.multiple, self.placement

    @property
    def over_best(self) -> float:
        """Time of ``cross`` over the best of DDP and ``plain``."""
        return self.times_s["cross"] / min(self.times_s["ddp"], self.times_s["plain"])

    @property
    def gain(self) -> float:
        """How much longer a parameter server without overlap takes; 0 where that was not measured."""
        return self.times_s.get(SERIAL, 0.0) / self.times_s["cross"]


def main(words: Sequence[str]) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.emulated sweep", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument(
        "--results", type=Path, default=Path("sweep.jsonl"), help="one result per line; is gone on with"
    )
    parser.add_argument("--profiles", default=",".join(COMPUTE_MS), metavar="NAME,NAME")
    arguments = parser.parse_args(words)
    keys = [
        (profile, multiple, placement)
        for profile in arguments.profiles.split(",")
        for multiple in MULTIPLES
        for placement in PLACEMENTS
    ]
    done = {cell.key: cell for cell in read(arguments.results)}
    measure([key for key in keys if key not in done], arguments.results)
    cells = [cell for cell in read(arguments.results) if cell.key in keys]
    names = ("cross", "plain", "ddp", SERIAL)
    table = Table(
        (
            "model",
            "x balance",
            "servers",
            *(f"{name} ms" for name in names),
            "cross / best",
            "serial / cross",
            "turns",
        ),
        [
            [
                cell.profile,
                cell.multiple,
                "with workers" if cell.placement else "apart",
                *(f"{1e3 * cell.times_s[name]:.0f}" if name in cell.times_s else "" for name in names),
                cell.over_best,
                cell.gain or "",
                cell.turns,
            ]
            for cell in cells
        ],
    )
    worst, best = max(cells, key=lambda cell: cell.over_best), max(cells, key=lambda cell: cell.gain)
    rows = [
        Row(f"worst cross / best of ddp and plain: {_name(worst)}", worst.over_best, NEVER_SLOWER),
        Row(f"best gain over {SERIAL}: {_name(best)}", best.gain, BEST_GAIN, least=True),
    ]
    report("Sweep of emulated training", rows, as_json=arguments.json, table=table)


def read(path: Path) -> list[Cell]:
    """The results of earlier runs."""
    if not path.exists():
        return []
    return [Cell(**json.loads(text)) for text in path.read_text(encoding="utf-8").splitlines()]


def measure(keys: Iterable[tuple[str, float, str]], path: Path) -> None:
    """Measure cells, and add each to the file as soon as it is there."""
    keys = list(keys)
    if not keys:
        return
    with Cluster(HOSTS) as cluster, path.open("a", encoding="utf-8") as file:
        for key in keys:
            print(json.dumps(asdict(measured(cluster, key))), file=file, flush=True)


def measured(cluster: Cluster, key: tuple[str, float, str]) -> Cell:
    """One cell, in jobs of its own: what a job has learnt of another model or link must not count."""
    profile, multiple, placement = key
    contest = Contest(cluster)
    contest.shape(setting_of(profile, multiple))
    for name in ("cross" + placement, "plain" + placement, "ddp", *([] if placement else [SERIAL])):
        contest.start(name)
    cell = taken(contest, key, 1)
    if cell.over_best > NEVER_SLOWER:
        cell = taken(contest, key, REPEATS)
    contest.close()
    return cell


def taken(contest: Contest, key: tuple[str, float, str], turns: int) -> Cell:
    """The systems' times after some turns."""
    profile, multiple, placement = key
    outcomes = contest.run(setting_of(profile, multiple), turns, STEPS).outcomes
    times_s = {name.removesuffix(COLOCATED): outcome.time_s() for name, outcome in outcomes.items()}
    return Cell(profile, multiple, placement, times_s, turns)


def setting_of(profile: str, multiple: float) -> Setting:
    """A model on links of a multiple of the rate at which bytes and computing take as long."""
    compute_ms = COMPUTE_MS[profile]
    nbytes = sum(layer.nbytes for layer in layers(profile, 1.0))
    balance_mbit = 8e-6 * nbytes / GOODPUT / (compute_ms / 1e3)
    return Setting(0, profile, compute_ms, multiple * balance_mbit)


def _name(cell: Cell) -> str:
    return f"{cell.profile}, {cell.multiple:g} x{cell.placement}"
