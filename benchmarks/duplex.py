"""Do push and result streams fill links in both directions at once?

Two workers and two servers, each on a host of its own with a 1 Gbit/s link. By turns, iperf3 uses the same
four pairs of hosts, also in both directions at once. Only payload counts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from benchmarks import iperf
from benchmarks.cluster import Cluster
from benchmarks.common import Row, main
from benchmarks.jobs import Job
from benchmarks.starting import Starter

RATE = "1gbit"
TENSORS = 8
TENSOR_BYTES = 64 << 20
ROUNDS = 3
IPERF_S = 4.0
SHARE = 0.95
LEAD_S = 0.2


def measure() -> Sequence[Row]:
    """Byteps and iperf3 by turns."""
    with Cluster(4, RATE) as cluster:
        starter = Starter(cluster)
        job = starter.byteps("stream", "benchmarks.streaming")
        stream(job)
        ours, limit, shares = [], [], []
        for _ in range(ROUNDS):
            limit.append(iperf.throughput(cluster, starter.workers, starter.servers, IPERF_S))
            before = [cluster.nic_bytes(worker) for worker in starter.workers]
            ours.append(len(starter.workers) * TENSORS * TENSOR_BYTES / stream(job))
            shares.append(ours[-1] / limit[-1])
            for worker, counted in zip(starter.workers, before, strict=True):
                check_counters(counted, cluster.nic_bytes(worker))
        job.close()
    return [
        Row("iperf3, both workers, each direction", statistics.median(limit) * 8e-6, unit="Mbit/s"),
        Row("push and result, both workers, each direction", statistics.median(ours) * 8e-6, unit="Mbit/s"),
        Row("share of iperf3", statistics.median(shares), SHARE, least=True),
    ]


def stream(job: Job) -> float:
    """Push and pull all tensors at once; how long the slowest worker took, seconds."""
    answers = job.ask(tensors=TENSORS, nbytes=TENSOR_BYTES, begin=time.monotonic() + LEAD_S)
    return max(float(answer["stream_s"]) for answer in answers)


def check_counters(before: tuple[int, int], after: tuple[int, int]) -> None:
    """Refuse a result whose bytes the network interface has not seen."""
    for old, new in zip(before, after, strict=True):
        if new - old < TENSORS * TENSOR_BYTES:
            raise RuntimeError(f"the interface counted {new - old} bytes of {TENSORS * TENSOR_BYTES}")


if __name__ == "__main__":
    main("Both directions at once: 2 workers, 2 servers, links of 1 Gbit/s", measure)
