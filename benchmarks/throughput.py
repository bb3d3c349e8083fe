"""byteps beside its peers and the limit: two workers, and two servers where a system has any.

All systems are started once and take turns, so that the ratios hold although the machine is shared. The limit
(``raw``) moves the bytes of push_pull between as many processes over plain sockets; iperf3 with the same
flows says whether it is one. A peer that is not installed is left out.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from benchmarks import iperf
from benchmarks.cluster import Cluster
from benchmarks.common import Row, Table, report
from benchmarks.hosts import Loopback
from benchmarks.jobs import Job
from benchmarks.peers.environments import PeerMissing
from benchmarks.starting import Starter
from byteps import _native
from byteps.dtypes import CELL_BYTES, DType, ReduceOp

LARGE_BYTES = 64 << 20
SIZES = (4 << 10, 256 << 10, 4 << 20, LARGE_BYTES)
ROUNDS = 7
# How long a system has its turn, about; at least 3 exchanges, the first of which is not counted.
TURN_S = 0.4
IPERF_S = 1.0
SUM_REPEATS = 20
# On one host byteps itself chooses shared memory; the same by TCP, as between hosts and as its peers do it.
OVER_TCP = "byteps, TCP"


@dataclass
class Turns:
    """What a system did in its turns with one size.

    Args:
        medians_s: Of each turn's exchanges, seconds.
        totals_s: Seconds of all turns.
        exchanges: Of all turns.
        server_cpu_s: CPU time of the servers in them.
    """

    medians_s: list[float] = field(default_factory=list)
    totals_s: float = 0.0
    exchanges: int = 0
    server_cpu_s: float = 0.0

    def take(self, job: Job, nbytes: int) -> None:
        """One more turn."""
        trial_s = max(job.exchange_s(nbytes, 2))
        repeats = max(2, min(500, round(TURN_S / trial_s)))
        before_s = job.server_cpu_s()
        times = job.exchange_s(nbytes, repeats)
        self.server_cpu_s += job.server_cpu_s() - before_s
        self.medians_s.append(statistics.median(times))
        self.totals_s += sum(times)
        self.exchanges += repeats

    def time_s(self) -> float:
        """The median turn."""
        return statistics.median(self.medians_s)

    def share_of(self, other: Turns) -> float:
        """The other's time over this one's, turn by turn."""
        pairs = zip(other.medians_s, self.medians_s, strict=True)
        return statistics.median(theirs / ours for theirs, ours in pairs)


Results = dict[tuple[str, int], Turns]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="byteps beside its peers and plain sockets")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="turns of each system")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="BYTES")
    parser.add_argument(
        "--rate", help="on emulated hosts with such links, like 1gbit; bounds are for loopback"
    )
    arguments = parser.parse_args()
    sizes = sorted(arguments.sizes)
    starter = Starter(Cluster(4, arguments.rate) if arguments.rate else Loopback())
    with starter.hosts as hosts:
        jobs = list(start_all(starter))
        results: Results = {(job.name, nbytes): Turns() for nbytes in sizes for job in jobs}
        shares = []
        for _ in range(arguments.rounds):
            for nbytes in sizes:
                for job in jobs:
                    results[job.name, nbytes].take(job, nbytes)
            limit = iperf.throughput(hosts, starter.workers, starter.servers, IPERF_S)
            shares.append(streamed(jobs[0], IPERF_S * limit) / limit)
        workers = len(starter.workers)
        for job in jobs:
            job.close()
    names = [job.name for job in jobs]
    table = Table(
        ("bytes", "system", "time ms", "GB/s", "share of raw", "server CPU s/GB"),
        [line(results, name, nbytes, workers) for nbytes in sizes for name in names],
    )
    rows = verdicts(results, sizes[-1], workers, statistics.median(shares))
    if arguments.rate:
        rows = [replace(row, bound=None) for row in rows]
    place = f"emulated links of {arguments.rate}" if arguments.rate else "loopback"
    title = f"Throughput on {place}: {workers} workers, {len(starter.servers)} servers"
    report(title, rows, as_json=arguments.json, table=table)


def start_all(starter: Starter) -> Iterator[Job]:
    """Every system that is installed, ready."""
    systems: Sequence[Callable[[], Job]] = (
        starter.raw,
        starter.byteps,
        lambda: replace(starter.byteps(settings={"BYTEPS_TRANSPORT": "tcp"}), name=OVER_TCP),
        starter.gloo,
        lambda: starter.gloo("ddp"),
        starter.horovod,
        starter.ps_lite,
    )
    for start in systems:
        try:
            job = start()
        except PeerMissing as missing:
            print(f"left out: {missing}", file=sys.stderr)
            continue
        job.exchange_s(SIZES[0], 1)
        yield job


def streamed(raw: Job, nbytes: float) -> float:
    """Bytes per second of one long exchange of all workers together."""
    share = round(nbytes) // len(raw.workers)
    return len(raw.workers) * share / raw.exchange_s(share, 1)[0]


def line(results: Results, name: str, nbytes: int, workers: int) -> list[str | float]:
    """A system's line of the table for one size."""
    turns = results[name, nbytes]
    cpu_s = cpu_s_per_gb(turns, nbytes, workers)
    return [
        _size(nbytes),
        name,
        1e3 * turns.time_s(),
        nbytes / turns.time_s() / 1e9,
        turns.share_of(results["raw", nbytes]),
        cpu_s if nbytes >= 1 << 20 and turns.server_cpu_s else "",
    ]


def verdicts(results: Results, nbytes: int, workers: int, share_of_iperf: float) -> list[Row]:
    """What has to hold, at the largest size."""
    raw, size = results["raw", nbytes], _size(nbytes)
    sum_s = sum_cpu_s_per_gb() * (workers - 1) / workers  # the first contribution needs no adding
    floor_s = cpu_s_per_gb(raw, nbytes, workers) + sum_s
    rows = [
        Row(f"{size}, raw / iperf3", share_of_iperf, 0.9, least=True),
        Row("adding them up, CPU per GB pushed", sum_s, unit="s"),
    ]
    for name in ("byteps", OVER_TCP):
        ours = results[name, nbytes]
        rows.append(Row(f"{size}, {name} / raw", ours.share_of(raw), 0.6, least=True))
        if ("ps-lite", nbytes) in results:
            speedup = ours.share_of(results["ps-lite", nbytes])
            rows.append(Row(f"{size}, {name} / ps-lite", speedup, 5.0, "x", least=True))
        ours_s = cpu_s_per_gb(ours, nbytes, workers)
        rows.append(Row(f"{size}, {name}, server CPU / (raw's + adding up)", ours_s / floor_s, 1.3))
    return rows


def cpu_s_per_gb(turns: Turns, nbytes: int, workers: int) -> float:
    """CPU time of the servers per GB that the workers sent, seconds."""
    return turns.server_cpu_s / (turns.exchanges * workers * nbytes / 1e9)


def sum_cpu_s_per_gb() -> float:
    """CPU time to add 1 GB of fp32 that has just come in to sums that lie in memory, seconds."""
    sums = np.zeros(LARGE_BYTES // 4, np.float32)
    incoming = np.ones(CELL_BYTES // 4, np.float32)
    cells = sums.reshape(-1, len(incoming))
    began = time.process_time()
    for _ in range(SUM_REPEATS):
        for cell in cells:
            _native.reduce(DType.FLOAT32, ReduceOp.SUM, [cell, incoming], cell)
    return (time.process_time() - began) / (SUM_REPEATS * LARGE_BYTES / 1e9)


def _size(nbytes: int) -> str:
    return f"{nbytes >> 20} MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB"


if __name__ == "__main__":
    main()
