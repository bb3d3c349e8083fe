"""Values of rounds through real servers: every dtype, size, operation and number of roles."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from byteps.dtypes import CELL_BYTES, DType, ReduceOp
from byteps.session import Session
from byteps.testing import run_ranks
from byteps.wire import TensorSpec
from tests.unit.test_reduce import NUMPY_TYPES

from .arrays import (
    Array,
    Job,
    agrees,
    declare_with_large_partitions,
    exchange,
    expected,
    lengths,
    small_values,
    spec,
    start,
)
from .sockets import socket_job

PARTITION_BYTES = 2 * CELL_BYTES
REDUCTIONS = (ReduceOp.SUM, ReduceOp.AVERAGE, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT, ReduceOp.COPY)
SCALES = ((1.0, 1.0), (0.5, 1.0), (1.0, 0.25), (2.0, 0.5))


@dataclass(frozen=True)
class Case:
    """One tensor, and whether its result replaces the contribution."""

    spec: TensorSpec
    in_place: bool

    def contribution(self, rank: int) -> Array:
        seed = [rank, self.spec.length, self.spec.dtype, self.in_place]
        return small_values(DType(self.spec.dtype), self.spec.length, seed)

    def expected(self, size: int) -> Array:
        if self.spec.op == ReduceOp.COPY:
            return self.contribution(self.spec.root)
        return expected(self.spec, [self.contribution(rank) for rank in range(size)])


def cases(size: int, servers: int) -> Iterator[Case]:
    """Every dtype and size in and out of place; operations and scales rotate from job to job."""
    for number, (dtype, position, in_place) in enumerate(itertools.product(DType, range(8), (False, True))):
        turn = int(dtype) + position + in_place + size + 3 * servers
        op = REDUCTIONS[turn % len(REDUCTIONS)]
        if dtype is DType.BOOL and op is ReduceOp.AVERAGE:
            op = ReduceOp.SUM
        prescale, postscale = SCALES[(number + size) % len(SCALES)]
        length = lengths(dtype, PARTITION_BYTES)[position]
        root = turn % size if op is ReduceOp.COPY else -1
        name = f"{dtype.name}.{position}.{in_place}"
        what = spec(name, length, dtype, op, prescale=prescale, postscale=postscale, root=root)
        yield Case(what, in_place)


def run_cases(session: Session, batch: list[Case], servers: int) -> dict[str, Array]:
    """All rounds at once, declared and submitted in an order of this rank's own."""
    order = np.random.default_rng(session.rank).permutation(len(batch))
    declare_with_large_partitions(session, [batch[index].spec for index in order], servers, PARTITION_BYTES)
    handles, results = [], {}
    for index in np.roll(order, session.rank):
        case = batch[index]
        own = case.contribution(session.rank)
        results[case.spec.name] = own if case.in_place else np.full_like(own, 1)
        gives = case.spec.op != ReduceOp.COPY or case.spec.root == session.rank
        handles.append(start(session, case.spec, own if gives else None, results[case.spec.name], int(index)))
    for handle in handles:
        handle.wait()
    return results


def check_all_cases(sessions: list[Session], servers: int) -> None:
    batch = list(cases(len(sessions), servers))
    results = run_ranks(sessions, lambda session: run_cases(session, batch, servers))
    for case in batch:
        wanted = case.expected(len(sessions))
        for rank, result in enumerate(results):
            assert agrees(result[case.spec.name], wanted, case.spec, sessions), f"rank {rank}: {case}"


@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_dtype_and_size(job: Job, size: int, servers: int) -> None:
    settings = {"partition_bytes": PARTITION_BYTES, "connections": 1 + (size + servers) % 2}
    with job(size, servers, **settings) as sessions:
        check_all_cases(sessions, servers)


@pytest.mark.parametrize(("size", "servers", "lanes"), [(1, 1, 1), (2, 3, 1), (4, 2, 2)])
def test_every_dtype_and_size_over_sockets(size: int, servers: int, lanes: int) -> None:
    settings = {"partition_bytes": PARTITION_BYTES, "connections": lanes, "force_distributed": True}
    with socket_job(size, servers, **settings) as sessions:
        check_all_cases(sessions, servers)


def test_the_cases_cover_every_operation_with_every_dtype_and_size() -> None:
    seen = {
        (case.spec.dtype, case.spec.length, case.spec.op)
        for size, servers in itertools.product((1, 2, 3, 4), (1, 2, 3))
        for case in cases(size, servers)
    }
    wanted = {
        (dtype, length, op)
        for dtype, op in itertools.product(DType, REDUCTIONS)
        for length in lengths(dtype, PARTITION_BYTES)
        if (dtype, op) != (DType.BOOL, ReduceOp.AVERAGE)
    }
    assert seen >= wanted


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_tensor_of_more_than_2_gib(job: Job) -> None:
    block, blocks = 1 << 20, 520  # fp32: 2.03 GiB
    what = spec("large", block * blocks)

    def run(session: Session) -> list[int]:
        data = np.empty((blocks, block), np.float32)
        for number in range(blocks):
            data[number] = number + session.rank
        data[:, -1] = session.rank + 5  # the last element of each block too
        start(session, what, data.reshape(-1), data.reshape(-1)).wait()
        good = [np.all(data[n, :-1] == 2 * n + 1) and data[n, -1] == 11 for n in range(blocks)]
        return [number for number, is_good in enumerate(good) if not is_good]

    with job(2, servers=2) as sessions:
        assert run_ranks(sessions, run) == [[], []], "blocks that are wrong, by rank"


def test_the_average_of_64_half_precision_ranks_does_not_overflow(job: Job) -> None:
    what = spec("half", 1000, DType.FLOAT16, ReduceOp.AVERAGE)
    with job(64) as sessions:
        results = run_ranks(sessions, lambda one: exchange(one, what, np.full(1000, 2000, np.float16)))
    assert all(np.all(result == 2000) for result in results)


@pytest.mark.parametrize("dtype", [DType.INT8, DType.UINT8, DType.INT16, DType.INT32, DType.INT64])
def test_integer_sums_wrap(job: Job, dtype: DType) -> None:
    limits = np.iinfo(NUMPY_TYPES[dtype])
    what = spec("wraps", 2, dtype)
    own = np.array([limits.max, limits.min], limits.dtype)
    with job(3) as sessions:
        results = run_ranks(sessions, lambda one: exchange(one, what, own))
    with np.errstate(over="ignore"):
        assert all(np.array_equal(result, own + own + own) for result in results)


@pytest.mark.parametrize("dtype", [DType.INT8, DType.INT16, DType.INT32, DType.INT64])
def test_integer_averages_truncate_toward_zero(job: Job, dtype: DType) -> None:
    what = spec("truncates", 5, dtype, ReduceOp.AVERAGE)
    parts = np.array([[-7, -1, 0, 1, 7], [0, 0, 0, 1, 1], [0, 0, 1, 0, 0]], NUMPY_TYPES[dtype])
    with job(3) as sessions:
        results = run_ranks(sessions, lambda one: exchange(one, what, parts[one.rank]))
    assert all(result.tolist() == [-2, 0, 0, 0, 2] for result in results)


def test_an_average_of_small_integers_does_not_wrap(job: Job) -> None:
    what = spec("wide", 3, DType.INT8, ReduceOp.AVERAGE)
    own = np.array([127, -128, 100], np.int8)
    with job(4) as sessions:
        results = run_ranks(sessions, lambda one: exchange(one, what, own))
    assert all(np.array_equal(result, own) for result in results)


@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.AVERAGE, ReduceOp.MAX, ReduceOp.PRODUCT])
def test_who_contributes_nothing_still_gets_the_result(job: Job, op: ReduceOp) -> None:
    what = spec("sparse", 100_000, op=op)
    own = np.full(what.length, 3, np.float32)
    with job(3, servers=2) as sessions:
        some = run_ranks(sessions, lambda one: exchange(one, what, None if one.rank == 1 else own))
        none = run_ranks(sessions, lambda one: exchange(one, what, None))
    value = {ReduceOp.SUM: 6, ReduceOp.AVERAGE: 2, ReduceOp.MAX: 3, ReduceOp.PRODUCT: 9}[op]
    assert all(np.all(result == value) for result in some)
    assert all(np.all(result == 0) for result in none)


@pytest.mark.parametrize("keeps", [False, True], ids=["root wants no result", "root wants the result"])
@pytest.mark.parametrize("dtype", [DType.FLOAT64, DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16])
def test_copy_changes_no_bit(job: Job, dtype: DType, keeps: bool) -> None:
    # As integers: all kinds of NaN and infinity are among them, and each must equal itself.
    own = (
        np.random.default_rng(dtype)
        .integers(0, 256, 70_000 * dtype.itemsize, np.uint8)
        .view(f"u{dtype.itemsize}")
    )

    def run(session: Session) -> list[Array]:
        results = []
        for root in range(session.size):
            what = spec(f"from {root}", own.size, dtype, ReduceOp.COPY, root=root, prescale=2.0)
            sends = session.rank == root
            into = np.zeros_like(own)
            start(session, what, own if sends else None, into if keeps or not sends else None).wait()
            results.append(own if sends and not keeps else into)
        return results

    with job(3, servers=2, connections=2) as sessions:
        for results in run_ranks(sessions, run):
            assert all(np.array_equal(result, own) for result in results)


def test_special_values_pass_through_sums(job: Job) -> None:
    own = np.array([np.nan, np.inf, -np.inf, np.inf, -0.0, 1e38], np.float32)
    other = np.array([1, 1, 1, -np.inf, -0.0, 3e38], np.float32)
    what = spec("special", own.size)
    with job(2) as sessions:
        results = run_ranks(sessions, lambda one: exchange(one, what, other if one.rank else own))
    with np.errstate(all="ignore"):
        wanted = own + other
    for result in results:
        assert np.array_equal(result, wanted, equal_nan=True)
        assert np.array_equal(np.signbit(result[1:3]), np.signbit(wanted[1:3]))
        assert np.signbit(result[4])


def test_nobody_has_to_want_the_result(job: Job) -> None:
    what = spec("unwanted", 200_000)

    def run(session: Session) -> Array:
        for _ in range(3):
            start(session, what, np.ones(what.length, np.float32), None).wait()
        return exchange(session, what, np.ones(what.length, np.float32))

    with job(2, servers=2) as sessions:
        assert all(np.all(result == 2) for result in run_ranks(sessions, run))
