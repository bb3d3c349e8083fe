"""Does the next forward pass run while the largest gradient is still to come?

VGG16, whose layer fc6 has three quarters of all bytes. When the first layer's forward hook runs, each worker
reads its interface's counter, and again at the end of that forward pass, by when all results of the step
before have come. At least as much of fc6 was still to come as what came in between exceeds all other layers.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

from benchmarks.cluster import Cluster
from benchmarks.common import Row, report
from benchmarks.emulated.contest import HEADERS, LEAD_S, WARM_STEPS, Contest
from benchmarks.emulated.places import HOSTS
from benchmarks.emulated.profiles import ROWS, layers

SETTING, LARGEST = ROWS[2], "fc6"
STEPS = 10
STILL_TO_COME = 0.6


def main(words: Sequence[str]) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.emulated overlap", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    arguments = parser.parse_args(words)
    with Cluster(HOSTS, SETTING.rate) as cluster:
        contest = Contest(cluster)
        contest.start("cross")
        job = contest.jobs["cross"]
        job.ask(do="prepare", profile=SETTING.profile, compute_s=SETTING.compute_s)
        job.ask(do="train", steps=WARM_STEPS, begin=time.monotonic() + LEAD_S)
        # The first forward pass has no step before it.
        counted = [
            counts[1:] for counts in job.ask(do="watch", steps=STEPS + 1, begin=time.monotonic() + LEAD_S)
        ]
        if not all(job.ask(do="check")):
            raise RuntimeError("the parameters are wrong")
        contest.close()
    least = [to_come(min(counts)) for counts in zip(*counted, strict=True)]
    what = f"share of {LARGEST} still to come at the first forward hook, least of all ranks"
    row = Row(f"{what}, median of {STEPS} steps", statistics.median(least), STILL_TO_COME, least=True)
    report(f"Overlap: {SETTING.title}", [row], as_json=arguments.json)


def to_come(received: int) -> float:
    """The least share of the largest layer's bytes among those that came in, headers included."""
    model = layers(SETTING.profile, SETTING.compute_s)
    largest = sum(layer.nbytes for layer in model if layer.name == LARGEST)
    others = sum(layer.nbytes for layer in model) - largest
    return max(0.0, (received / HEADERS - others) / largest)
