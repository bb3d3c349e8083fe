"""All workers together, where they sum among themselves: how long a tiny sum takes, how fast a large one."""

from __future__ import annotations

import statistics
import time

import numpy as np

from byteps.diagnostics import count, size
from byteps.doctor.findings import Finding, ok
from byteps.doctor.rounds import buffer
from byteps.dtypes import DType, ReduceOp
from byteps.errors import BytePSError
from byteps.session import Session
from byteps.wire import TensorSpec

_LATENCY_ROUNDS, _LARGE_ROUNDS = 10, 5
_LARGE_BYTES = 16 << 20


def check_rings(session: Session) -> Finding:
    """Sum with all other ranks, which do the same.

    Raises:
        BytePSError: a rank was lost, or a sum is wrong.
    """
    latency_s = statistics.median(_times_s(session, 1, _LATENCY_ROUNDS))
    length = _LARGE_BYTES // DType.FLOAT32.itemsize
    rate = _LARGE_BYTES / min(_times_s(session, length, _LARGE_ROUNDS))
    text = f"{count(session.size, 'worker')} sum 4 bytes in {1e3 * latency_s:.2f} ms"
    return ok("all-reduce", f"{text}, {size(_LARGE_BYTES)} at {rate / 1e9:.3f} GB/s")


def _times_s(session: Session, length: int, rounds: int) -> list[float]:
    """How long each sum of so many numbers took."""
    spec = TensorSpec(f"doctor.rings.{length}", DType.FLOAT32, (length,), ReduceOp.SUM)
    session.declare([spec])
    times = []
    for _ in range(rounds):
        data = np.full(length, session.rank + 1, np.float32)
        session.barrier()
        begin_s = time.perf_counter()
        session.submit(spec, buffer(data), buffer(data)).wait()
        times.append(time.perf_counter() - begin_s)
        if not np.all(data == session.size * (session.size + 1) / 2):
            raise BytePSError(f"the ranks' sum of {size(data.nbytes)} is wrong on rank {session.rank}")
    return times
