"""Times push_pull over sizes and dtypes: every rank submits a numpy array and waits for the sum."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from byteps.bench import values
from byteps.bench.membership import Member, Table, buffer
from byteps.bench.plan import PushPullPlan
from byteps.bench.progress import Progress
from byteps.bench.usage import cpu_seconds, local_servers
from byteps.bench.values import Array
from byteps.diagnostics import size
from byteps.dtypes import DType, ReduceOp
from byteps.errors import BytePSError
from byteps.wire import TensorSpec

GIGA = 1e9


@dataclass(frozen=True, slots=True)
class Point:
    """What one size and dtype took.

    Attributes:
        dtype: name of the element type.
        bytes: size of the tensor.
        median_s, p95_s: time of a round on the slowest rank.
        wire_bytes: what a worker sent or received per round, the larger, by the native core's counters.
        server_cpu_s: CPU time of the servers that can be seen, per round; None if none can.
    """

    dtype: str
    bytes: int
    median_s: float
    p95_s: float
    wire_bytes: float
    server_cpu_s: float | None


def measure(member: Member, plan: PushPullPlan) -> dict[str, Any]:
    """Run the plan. All ranks call this with the same plan.

    Returns:
        The report, the same on each rank: see ``report``.

    Raises:
        BytePSError: a sum is wrong, or the job failed.
    """
    session = member.session
    bench = _Bench(member, plan)
    latency, points = [], []
    steps = len(plan.dtypes) * (1 + len(plan.sizes))
    with Progress("byteps bench pushpull", steps, shown=session.rank == 0) as progress:
        for dtype in plan.dtypes:
            progress.begin(f"{dtype.name.lower()}, one element")
            latency.append(bench.point(dtype, dtype.itemsize))
            for nbytes in plan.sizes:
                progress.begin(f"{dtype.name.lower()}, {size(nbytes)}")
                points.append(bench.point(dtype, nbytes))
    return _report(member, plan, points, latency, bench.seen)


class _Bench:
    """The arrays and the points measured with them."""

    def __init__(self, member: Member, plan: PushPullPlan) -> None:
        self._member = member
        self._plan = plan
        room = max(*plan.sizes, DType.FLOAT64.itemsize)
        self._source = np.empty(room, np.uint8)
        self._result = np.empty(room, np.uint8)
        self._filled: DType | None = None
        # One worker of each host looks, or a server would count twice.
        self._servers = local_servers(member.servers) if member.session.local_rank <= 0 else {}
        seen = np.zeros(len(member.servers))
        seen[list(self._servers)] = 1
        self._watchers = member.summed(seen)

    @property
    def seen(self) -> int:
        """How many servers run beside a worker."""
        return int(np.count_nonzero(self._watchers))

    def point(self, dtype: DType, nbytes: int) -> Point:
        """Measure one size, in bytes."""
        source, result = self._arrays(dtype, nbytes)
        name = f"bench.{dtype.name.lower()}.{source.nbytes}"
        spec = TensorSpec(name, dtype, source.shape, ReduceOp.SUM)
        self._round(spec, source, result)
        self._check(spec, dtype, result)
        for _ in range(self._plan.warmup):
            self._round(spec, source, result)
        self._member.session.barrier()
        before, cpu = self._traffic(), self._cpu()
        times = [self._round(spec, source, result) for _ in range(self._plan.iterations)]
        sent, received = self._traffic() - before
        # Before the barrier a server may still be busy with other ranks, after it with nothing.
        self._member.session.barrier()
        cpu = self._cpu() - cpu
        self._member.communicator.finished(spec)  # the servers' memory is for the next one
        own = np.array([np.median(times), np.percentile(times, 95), max(sent, received)])
        table = self._member.by_rank(own)
        return Point(
            dtype.name.lower(),
            source.nbytes,
            float(table[:, 0].max()),
            float(table[:, 1].max()),
            float(table[:, 2].mean()) / self._plan.iterations,
            self._summed_cpu(cpu),
        )

    def _arrays(self, dtype: DType, nbytes: int) -> tuple[Array, Array]:
        kind = values.storage(dtype)
        if self._filled is not dtype:
            whole = len(self._source) // kind.itemsize * kind.itemsize
            values.fill(self._source[:whole].view(kind), dtype, self._member.session.rank)
            self._filled = dtype
        length = max(1, nbytes // kind.itemsize) * kind.itemsize
        return self._source[:length].view(kind), self._result[:length].view(kind)

    def _round(self, spec: TensorSpec, source: Array, result: Array) -> float:
        begin_s = time.perf_counter()
        self._member.session.submit(spec, buffer(source), buffer(result)).wait()
        return time.perf_counter() - begin_s

    def _check(self, spec: TensorSpec, dtype: DType, result: Array) -> None:
        period = values.expected(self._member.session.size, dtype)
        index = values.first_difference(result, period)
        if index >= 0:
            raise BytePSError(
                f"the sum is wrong on rank {self._member.session.rank}: element {index} of {spec.name} "
                f"({spec.describe()}) is {result[index]}, not {period[index % values.PERIOD]}; please "
                f"report it"
            )

    def _traffic(self) -> Table:
        worker = self._member.communicator.worker
        return np.array([worker.bytes_sent, worker.bytes_received], np.float64)

    def _cpu(self) -> Table:
        """CPU time so far of the servers that this rank watches."""
        used = np.zeros(len(self._member.servers))
        for number, pid in self._servers.items():
            used[number] = cpu_seconds(pid)
        return used

    def _summed_cpu(self, own: Table) -> float | None:
        total = self._member.summed(own)
        if not self.seen:
            return None
        watched = self._watchers > 0
        return float(np.sum(total[watched] / self._watchers[watched])) / self._plan.iterations


def _report(
    member: Member, plan: PushPullPlan, points: list[Point], latency: list[Point], seen: int
) -> dict[str, Any]:
    session = member.session
    config = session.config
    fastest = max(point.wire_bytes / point.median_s for point in points)
    limit = plan.link_gbit * GIGA / 8 or fastest
    # Servers hold equal shares of each tensor, as nearly as whole cells allow.
    summed = session.size * seen / len(member.servers)
    return {
        "bench": "pushpull",
        "workers": session.size,
        "servers": len(member.servers),
        "iterations": plan.iterations,
        "warmup": plan.warmup,
        "settings": {
            name: getattr(config, name)
            for name in ("partition_bytes", "credit_bytes", "connections", "scheduling", "deterministic")
        },
        "limit": {
            "gb_per_s": limit / GIGA,
            "from": f"--link-gbit {plan.link_gbit:g}" if plan.link_gbit else "the fastest row of this run",
        },
        "servers_beside_workers": seen,
        "latency": [
            {"dtype": point.dtype, "median_s": point.median_s, "p95_s": point.p95_s} for point in latency
        ],
        "rows": list(_rows(points, limit, summed)),
    }


def _rows(points: list[Point], limit: float, summed: float) -> Iterator[dict[str, Any]]:
    """The points with what follows from them.

    Args:
        points: what was measured.
        limit: bytes/s, each way.
        summed: tensors' worth of bytes that the servers with known CPU time receive in a round.
    """
    for point in points:
        cpu_s = point.server_cpu_s
        yield {
            **asdict(point),
            "gb_per_s": point.bytes / point.median_s / GIGA,
            "share_of_limit": point.wire_bytes / point.median_s / limit,
            "server_cpu_s_per_gb": None if cpu_s is None else cpu_s * GIGA / (point.bytes * summed),
            "verified": True,  # or there would be no point
        }
