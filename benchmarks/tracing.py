"""What recording a timeline costs: two equal jobs in one process, one traced and one not, that take turns.

Ranks and servers are threads, so nothing but the work of byteps itself is measured, where tracing weighs
most; the one process also carries the recorders of all four. CPU time is that of the whole process: it says
the same where other programs disturb the clock.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common import Row, main
from byteps.dtypes import DType, ReduceOp
from byteps.session import Buffer, Session
from byteps.testing import cluster, run_ranks
from byteps.wire import TensorSpec

LARGE_BYTES = 64 << 20
SMALL_BYTES = 4 << 10
MANY_TENSORS = 1000
BLOCKS = 8
PAIRS = 10
WARM_UP = 2
BOUND = 1.03

Job = list[Session]


class Pair(NamedTuple):
    """A round of each job: (without tracing, with it), wall clock and CPU time in seconds."""

    wall: tuple[float, float]
    cpu: tuple[float, float]


def measure() -> Sequence[Row]:
    """Compare pairs of rounds of both jobs.

    The jobs are made anew for each block: where their memory happens to lie can matter more than tracing.
    """
    many: list[Pair] = []
    large: list[Pair] = []
    for block in range(BLOCKS):
        with tempfile.TemporaryDirectory() as folder, _jobs(Path(folder), block % 2 == 0) as jobs:
            many += _pairs(jobs, MANY_TENSORS, SMALL_BYTES)
            large += _pairs(jobs, 1, LARGE_BYTES)
            if not all(session.trace.on for session in jobs[1]):
                raise SystemExit("the timeline was full before the measurement was over")
    return (
        Row("4 KiB, 1,000 in flight, not traced", 1e6 * _plain_s(many) / MANY_TENSORS, unit="us each"),
        Row("4 KiB, 1,000 in flight, traced / not", _ratio(pair.wall for pair in many), BOUND),
        Row("4 KiB, 1,000 in flight, CPU time traced / not", _ratio(pair.cpu for pair in many)),
        Row("64 MiB, not traced", 1e3 * _plain_s(large), unit="ms"),
        Row("64 MiB, traced / not", _ratio(pair.wall for pair in large), BOUND),
        Row("64 MiB, CPU time traced / not", _ratio(pair.cpu for pair in large)),
    )


@contextmanager
def _jobs(folder: Path, plain_first: bool) -> Iterator[tuple[Job, Job]]:
    """A job that is not traced and one that is."""
    settings: list[dict[str, Any]] = [{}, {"timeline": str(folder / "t.json.gz")}]
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(cluster(2, servers=2, **each))
            for each in (settings if plain_first else reversed(settings))
        )
        yield (first, second) if plain_first else (second, first)


def _plain_s(pairs: Sequence[Pair]) -> float:
    return statistics.median(pair.wall[0] for pair in pairs)


def _ratio(times: Iterable[tuple[float, float]]) -> float:
    return statistics.median(traced / plain for plain, traced in times)


def _pairs(jobs: tuple[Job, Job], tensors: int, nbytes: int) -> list[Pair]:
    """Let rounds of both jobs take turns."""
    rounds = [_round(job, tensors, nbytes) for job in jobs]
    pairs = []
    for pair in range(WARM_UP + PAIRS):
        wall, cpu = [0.0, 0.0], [0.0, 0.0]
        for which in (0, 1) if pair % 2 == 0 else (1, 0):
            began_s = time.process_time()
            wall[which] = rounds[which]()
            cpu[which] = time.process_time() - began_s
        pairs.append(Pair((wall[0], wall[1]), (cpu[0], cpu[1])))
    return pairs[WARM_UP:]


def _round(job: Job, tensors: int, nbytes: int) -> Callable[[], float]:
    """A call that sums all tensors over the ranks once and returns how long that took, seconds."""
    arrays = {session.rank: [np.ones(nbytes // 4, np.float32) for _ in range(tensors)] for session in job}
    specs = [
        TensorSpec(f"{nbytes}.{number}", DType.FLOAT32, (nbytes // 4,), ReduceOp.AVERAGE)
        for number in range(tensors)
    ]

    def one_rank(session: Session) -> float:
        session.barrier()
        began_s = time.perf_counter()
        handles = []
        for spec, array in zip(specs, arrays[session.rank], strict=True):
            memory = Buffer(array.ctypes.data, array.nbytes, array)
            handles.append(session.submit(spec, memory, memory))
        for handle in handles:
            handle.wait()
        return time.perf_counter() - began_s

    for session in job:
        session.declare(specs)
    return lambda: max(run_ranks(job, one_rank))


if __name__ == "__main__":
    main("Tracing: 2 workers and 2 servers as threads, traced and not by turns", measure)
