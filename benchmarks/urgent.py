"""How long an urgent 64 KiB push_pull takes in the midst of a 64 MiB one, and what the stream loses by it.

Two workers and 2 or 8 servers, each on a host of its own with a 200 Mbit/s link, default settings but for the
transport. The delay counts from the moment at which both workers submit until the later has the sum.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping

from benchmarks.cluster import Cluster, bits_per_second
from benchmarks.common import Row, report
from benchmarks.jobs import Job
from benchmarks.starting import Starter
from benchmarks.streaming import URGENT_BYTES

RATE = "200mbit"
TRANSPORTS: Mapping[str, Mapping[str, str]] = {
    "tcp": {},
    # UCX's own TCP: the only one of its transports that passes emulated links.
    "ucx": {"BYTEPS_TRANSPORT": "ucx", "UCX_TLS": "tcp", "UCX_NET_DEVICES": Cluster.interface},
}
STREAM_BYTES = 64 << 20
SERVERS = (2, 8)
TRIES = 20
FIFO_TRIES = 2
MEDIAN_MS, WORST_MS = 40.0, 80.0
SHARE = 0.93
# What TCP leaves of a link's rate for payload.
GOODPUT = 0.95
LEAD_S = 0.2
# Of the time that the stream takes; a little later at each try, so that no phase of it is favoured.
FIRST_MOMENT_S, MOMENT_STEP_S = 1.2, 0.021


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="an urgent tensor within a large one")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--transport", choices=tuple(TRANSPORTS), default="tcp", help="(default: tcp)")
    arguments = parser.parse_args()
    settings = TRANSPORTS[arguments.transport]
    rows = [row for servers in SERVERS for row in measure_with(servers, settings)]
    title = f"Urgent 64 KiB within 64 MiB, 2 workers, links of 200 Mbit/s, {arguments.transport}"
    report(title, rows, as_json=arguments.json)


def measure_with(servers: int, settings: Mapping[str, str]) -> list[Row]:
    """20 tries by priority, and for comparison a few first come, first served."""
    with Cluster(2 + servers, RATE) as cluster:
        starter = Starter(cluster, servers=range(2, 2 + servers))
        delays_ms, shares = tries(starter.byteps("urgent", "benchmarks.streaming", settings), TRIES)
        fifo = {"BYTEPS_SCHEDULING": "fifo", **settings}
        fifo_ms, _ = tries(starter.byteps("urgent", "benchmarks.streaming", fifo), FIFO_TRIES)
    name = f"{servers} servers"
    return [
        Row(f"{name}, urgent, median of {TRIES}", statistics.median(delays_ms), MEDIAN_MS, "ms"),
        Row(f"{name}, urgent, worst", max(delays_ms), WORST_MS, "ms"),
        Row(f"{name}, the stream's share of goodput", statistics.median(shares), SHARE, least=True),
        Row(f"{name}, urgent, first come first served", statistics.median(fifo_ms), unit="ms"),
    ]


def tries(job: Job, count: int) -> tuple[list[float], list[float]]:
    """Delays of the urgent tensor (ms) and the stream's shares of the goodput."""
    begin = {"tensors": 1, "nbytes": STREAM_BYTES}
    answers = []
    for number in range(-1, count):  # the first one declares
        moment_s = FIRST_MOMENT_S + max(0, number) * MOMENT_STEP_S
        answers.append(job.ask(**begin, begin=time.monotonic() + LEAD_S, urgent_after_s=moment_s))
    job.close()
    ideal_s = 8 * (STREAM_BYTES + URGENT_BYTES) / (GOODPUT * bits_per_second(RATE))
    delays_ms = [1e3 * max(answer["urgent_s"] for answer in both) for both in answers[1:]]
    shares = [ideal_s / max(answer["stream_s"] for answer in both) for both in answers[1:]]
    return delays_ms, shares


if __name__ == "__main__":
    main()
