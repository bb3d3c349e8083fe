"""Arrays as tensors of a session, and what a reduction of them must give, exactly."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from byteps.dtypes import CELL_BYTES, DType, ReduceOp
from byteps.session import Buffer, Handle, Session
from byteps.testing import cluster
from byteps.wire import TensorSpec
from tests.unit.test_reduce import (
    NUMPY_TYPES,
    bfloat_bits,
    bfloat_values,
    expected_floats,
    expected_integers,
)

Array = npt.NDArray[Any]

Job = Callable[..., AbstractContextManager[list[Session]]]
"""``job``, or what calls it with more settings."""

PARTITIONS_PER_SERVER = 50
"""Placement makes partitions smaller until every server has about as many."""


@contextlib.contextmanager
def job(size: int, servers: int = 1, **settings: object) -> Iterator[list[Session]]:
    """A cluster in which nothing waits for ever: a deadlock ends the test with ``StallTimeout``."""
    limits: dict[str, Any] = {"stall_warning_s": 5.0, "stall_timeout_s": 25.0, **settings}
    with cluster(size, servers, **limits) as sessions:
        yield sessions


def job_of_nodes(size: int, servers: int = 1, **settings: Any) -> AbstractContextManager[list[Session]]:
    """The same with two ranks on each node, and the last alone on its own if their number is odd."""
    return job(size, servers, nodes=[rank // 2 for rank in range(size)], **settings)


def spec(
    name: str, length: int, dtype: DType = DType.FLOAT32, op: ReduceOp = ReduceOp.SUM, **rest: Any
) -> TensorSpec:
    return TensorSpec(name, dtype, (length,), op, **rest)


def buffer(array: Array) -> Buffer:
    return Buffer(array.ctypes.data, array.nbytes, array)


def start(
    session: Session, what: TensorSpec, source: Array | None, into: Array | None, priority: int = 0
) -> Handle:
    """Submit arrays."""
    return session.submit(
        what,
        None if source is None else buffer(source),
        None if into is None else buffer(into),
        priority=priority,
    )


def exchange(session: Session, what: TensorSpec, source: Array | None) -> Array:
    """Submit, wait, and return the result as a new array."""
    into = np.zeros(what.length, NUMPY_TYPES[DType(what.dtype)])
    start(session, what, source, into).wait()
    return into


def declare_with_large_partitions(
    session: Session, specs: Sequence[TensorSpec], servers: int, partition_bytes: int
) -> None:
    """Declare in one batch that is large enough for the largest partitions allowed."""
    session.declare([*specs, spec("padding", servers * PARTITIONS_PER_SERVER * partition_bytes, DType.UINT8)])


def lengths(dtype: DType, partition_bytes: int) -> list[int]:
    """Numbers of elements around all the borders there are."""
    partition = partition_bytes // dtype.itemsize
    return [0, 1, 7, 4095, CELL_BYTES // dtype.itemsize, partition, partition + 1, partition * 7 // 2]


def small_values(dtype: DType, length: int, seed: Sequence[int]) -> Array:
    """Small whole numbers: sums and products of four of them are exact in every dtype."""
    values = np.random.default_rng(seed).integers(-4, 5, length)
    if dtype is DType.BFLOAT16:
        return bfloat_bits(values.astype(np.float32))
    return np.abs(values).astype(np.uint8) if dtype is DType.UINT8 else values.astype(NUMPY_TYPES[dtype])


def expected(what: TensorSpec, contributions: Sequence[Array]) -> Array:
    """The result for contributions that are exact in the accumulation type whatever the order."""
    dtype, op = DType(what.dtype), ReduceOp(what.op)
    scales = (what.prescale, what.postscale)
    if op is ReduceOp.COPY:
        return contributions[0]
    if dtype is DType.BOOL:
        logical = np.logical_and if op in (ReduceOp.MIN, ReduceOp.PRODUCT) else np.logical_or
        return np.asarray(logical.reduce(contributions))
    if not dtype.is_floating:
        return expected_integers(dtype, op, contributions, *scales)
    if dtype is DType.BFLOAT16:
        return bfloat_bits(expected_floats(op, [bfloat_values(bits) for bits in contributions], *scales)[0])
    return expected_floats(op, contributions, *scales)[0].astype(NUMPY_TYPES[dtype])


def agrees(result: Array, wanted: Array, what: TensorSpec, sessions: Sequence[Session]) -> bool:
    """Whether a result is what it must be: exactly, but for averages in half precision over several nodes.

    Each node's part of those is rounded on its way to a server. For ``small_values`` it is at most 4.
    """
    nodes = len(getattr(sessions[0].communicator, "nodes", ()))
    if nodes < 2 or what.op != ReduceOp.AVERAGE or what.dtype not in (DType.FLOAT16, DType.BFLOAT16):
        return np.array_equal(result, wanted)
    narrow = what.dtype == DType.BFLOAT16
    values = [bfloat_values(one) if narrow else one.astype(np.float32) for one in (result, wanted)]
    epsilon = 2.0**-7 if narrow else 2.0**-10
    return bool(np.all(np.abs(values[0] - values[1]) <= 4 * epsilon * nodes))


def held() -> tuple[int, int, int]:
    """Python threads, native I/O threads and descriptors of this process."""
    names = [name.read_text() for name in Path("/proc/self/task").glob("*/comm")]
    return threading.active_count(), names.count("byteps-io\n"), len(os.listdir("/proc/self/fd"))
