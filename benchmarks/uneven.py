"""Step times in an uneven world: a slow link, other people's traffic, a second job; and DDP's under the same.

Two workers and two servers, each on a host of its own with a 200 Mbit/s link. A step is a forward and a
backward pass of layers that cost next to no computing, so its time is the links' time. byteps and DDP take
turns. DDP has no servers: what shares a server's link in the one case shares a worker's link in the other.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator, Sequence

from benchmarks.cluster import Cluster, bits_per_second
from benchmarks.common import Row, main
from benchmarks.iperf import Flow
from benchmarks.jobs import Job
from benchmarks.starting import Starter

RATE, HALF_RATE = "200mbit", "100mbit"
# What TCP leaves of a link's rate for payload.
GOODPUT = 0.95
MODEL_BYTES = 16 << 20
BACKGROUND = 0.3
TURNS = 5
STEPS = 4
WORKERS, SERVERS, STRANGER = (0, 1), (2, 3), 4
BOUND = 1.1
NO_WORSE = 1.0
Load = Callable[[int], contextlib.AbstractContextManager[None]]


def measure() -> Sequence[Row]:
    """All three loads, and none for comparison."""
    rows = []
    with Cluster(5, RATE) as cluster:
        starter = Starter(cluster, WORKERS, SERVERS)
        ours = [starter.byteps("byteps-ddp") for _ in range(2)]
        ddp = [starter.gloo("ddp") for _ in range(2)]
        load: Load
        for name, allowed, load, jobs in (
            ("even links", 1.0, lambda host: contextlib.nullcontext(), 1),
            ("worker's link at half rate", 2.0, lambda host: slow_link(cluster), 1),
            ("30 % traffic on a server", 1 / (1 - BACKGROUND), lambda host: traffic(cluster, host), 1),
            ("two jobs", 2.0, lambda host: contextlib.nullcontext(), 2),
        ):
            rows += compare(name, allowed, load, ours[:jobs], ddp[:jobs])
        for job in (*ours, *ddp):
            job.close()
    return rows


def compare(name: str, allowed: float, load: Load, ours: Sequence[Job], ddp: Sequence[Job]) -> list[Row]:
    """Step times of byteps and DDP, by turns.

    Args:
        name: Of the load.
        allowed: What the slowest link allows, in step times of even links.
        load: Puts the load on a host.
        ours: Jobs of byteps, at the same time.
        ddp: The same with DDP.
    """
    limit_s = allowed * 8 * MODEL_BYTES / (GOODPUT * bits_per_second(RATE))
    times: dict[str, list[float]] = {"byteps": [], "ddp": []}
    for _ in range(TURNS):
        for system, jobs, host in (("byteps", ours, SERVERS[0]), ("ddp", ddp, WORKERS[0])):
            with load(host):
                times[system].append(step_s(jobs))
    ours_s, ddp_s = (statistics.median(found) for found in times.values())
    bounded = allowed > 1
    return [
        Row(f"{name}: byteps / what the slowest link allows", ours_s / limit_s, BOUND if bounded else None),
        Row(f"{name}: DDP / what the slowest link allows", ddp_s / limit_s),
        Row(f"{name}: byteps / DDP", ours_s / ddp_s, NO_WORSE if bounded else None),
    ]


def step_s(jobs: Sequence[Job]) -> float:
    """Time of a step of the slowest of jobs that run at the same time: the mean of some after a first."""
    mean_s = 0.0
    for repeats in (1, STEPS):
        for job in jobs:
            job.begin(nbytes=MODEL_BYTES, repeats=repeats)
        mean_s = max(sum(times) / repeats for job in jobs for times in job.answers())
    return mean_s


@contextlib.contextmanager
def slow_link(cluster: Cluster) -> Iterator[None]:
    """One worker's link has half the rate."""
    cluster.set_rate(WORKERS[0], HALF_RATE)
    yield
    cluster.set_rate(WORKERS[0], RATE)


@contextlib.contextmanager
def traffic(cluster: Cluster, host: int) -> Iterator[None]:
    """Datagrams that do not care for congestion take 30 % of a host's link, in both directions."""
    payload = round(BACKGROUND * GOODPUT * bits_per_second(RATE))
    client = Flow(STRANGER, host).start(cluster, 600.0, "-u", "-b", str(payload))
    yield
    client.kill()
    client.wait()


if __name__ == "__main__":
    main("Uneven links: 2 workers, 2 servers, links of 200 Mbit/s, 16 MiB per step", measure)
