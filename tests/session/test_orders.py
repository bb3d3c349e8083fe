"""Orders of arrival and submission: they change no value, and no legal one can stop the job."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest

from byteps.dtypes import CELL_BYTES, DType, ReduceOp
from byteps.session import Session
from byteps.testing import run_ranks
from tests.unit.test_reduce import NUMPY_TYPES, bfloat_bits, bfloat_values

from .arrays import Array, Job, declare_with_large_partitions, exchange, spec, start

PARTITION_BYTES = 2 * CELL_BYTES
ROUNDS = 8


def mixed_magnitudes(rank: int, length: int) -> Array:
    """Float64 values whose sum depends on the order of the additions."""
    generator = np.random.default_rng(rank)
    return np.asarray(generator.normal(size=length) * 2.0 ** generator.integers(-12, 12, length))


def as_dtype(values: Array, dtype: DType) -> Array:
    return (
        bfloat_bits(values.astype(np.float32))
        if dtype is DType.BFLOAT16
        else values.astype(NUMPY_TYPES[dtype])
    )


def sum_in_order(contributions: list[Array], dtype: DType, divisor: int) -> Array:
    """One addition after the other in the accumulation type."""
    values = [bfloat_values(one) if dtype is DType.BFLOAT16 else one for one in contributions]
    accumulator = np.float64 if dtype is DType.FLOAT64 else np.float32
    total = values[0].astype(accumulator)
    for value in values[1:]:
        total = total + value.astype(accumulator)
    return as_dtype(total / accumulator(divisor), dtype)


@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.AVERAGE])
@pytest.mark.parametrize("dtype", [DType.FLOAT64, DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16])
def test_deterministic_sums_are_added_in_rank_order(flat_job: Job, dtype: DType, op: ReduceOp) -> None:
    size, length = 4, 50_000
    own = [as_dtype(mixed_magnitudes(rank, length), dtype) for rank in range(size)]
    divisor = size if op is ReduceOp.AVERAGE else 1
    wanted = sum_in_order(own, dtype, divisor)
    assert not np.array_equal(wanted, sum_in_order(own[::-1], dtype, divisor)), "the order must matter"

    def run(session: Session) -> list[Array]:
        late = random.Random(session.rank)
        results = []
        for _ in range(ROUNDS):
            time.sleep(late.uniform(0, 0.004))  # workload
            results.append(exchange(session, spec("sum", length, dtype, op), own[session.rank]))
        return results

    with flat_job(size, servers=2, deterministic=True, connections=2) as sessions:
        for results in run_ranks(sessions, run):
            assert all(np.array_equal(result, wanted) for result in results)


def test_deterministic_sums_skip_who_contributes_nothing(flat_job: Job) -> None:
    size, length = 4, 40_000
    own = [mixed_magnitudes(rank, length).astype(np.float32) for rank in range(size)]
    wanted = sum_in_order([own[0], own[2], own[3]], DType.FLOAT32, 1)
    with flat_job(size, deterministic=True) as sessions:
        results = run_ranks(
            sessions,
            lambda one: exchange(one, spec("sum", length), None if one.rank == 1 else own[one.rank]),
        )
    assert all(np.array_equal(result, wanted) for result in results)


def test_names_count_and_not_the_order_of_declaration(job: Job) -> None:
    names = [f"tensor {number}" for number in range(40)]

    def run(session: Session) -> list[float]:
        order = random.Random(session.rank).sample(names, len(names))
        session.declare([spec(name, 10 + int(name.split()[1])) for name in order[:20]])
        got = {}
        for name in order:
            number = int(name.split()[1])
            into = np.zeros(10 + number, np.float32)
            got[name] = (start(session, spec(name, into.size), np.full_like(into, number), into), into)
        for handle, _ in got.values():
            handle.wait()
        return [float(got[name][1].sum()) for name in names]

    with job(3, servers=2) as sessions:
        results = run_ranks(sessions, run)
    assert results == [[3.0 * number * (10 + number) for number in range(40)]] * 3


def one_after_the_other(session: Session, data: dict[str, Array], order: str) -> None:
    for name in order:
        start(session, spec(name, data[name].size), data[name], data[name]).wait()


def all_at_once(session: Session, data: dict[str, Array], order: str) -> None:
    handles = [start(session, spec(name, data[name].size), data[name], data[name]) for name in order]
    for handle in handles:
        handle.wait()


@pytest.mark.parametrize("scheduling", ["priority", "fifo", "stop-and-wait"])
@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("length", [1, 1000, PARTITION_BYTES // 4, PARTITION_BYTES * 7 // 8])
def test_opposite_orders_with_the_credit_of_one_partition(
    job: Job, length: int, servers: int, lanes: int, scheduling: str
) -> None:
    """Bytes that only wait for other ranks must not hold the credit that those ranks' tensors need here."""

    def run(session: Session) -> dict[str, Array]:
        data = {name: np.full(length, session.rank + 1, np.float32) for name in "XYZ"}
        specs = [spec(name, length) for name in data]
        declare_with_large_partitions(session, specs, servers, PARTITION_BYTES)
        for _ in range(ROUNDS):
            if session.rank == 0:
                one_after_the_other(session, data, "XYZ")
            else:
                all_at_once(session, data, "ZYX" if session.rank == 1 else "YZX")
        return data

    settings = {"partition_bytes": PARTITION_BYTES, "credit_bytes": PARTITION_BYTES, "connections": lanes}
    with job(3, servers, scheduling=scheduling, **settings) as sessions:
        for data in run_ranks(sessions, run):
            assert all(np.all(array == 6 * 3.0 ** (ROUNDS - 1)) for array in data.values())


def test_a_slow_rank_gets_the_same_rounds(job: Job) -> None:
    """Ranks may run ahead by as many tensors as they like, not by rounds of one."""
    names = [f"layer {number}" for number in range(30)]

    def run(session: Session) -> list[float]:
        sums = []
        for step in range(5):
            arrays = [np.full(20_000, step + number, np.float32) for number in range(len(names))]
            handles = []
            for number, (name, array) in enumerate(zip(names, arrays, strict=True)):
                if session.rank == 2:
                    time.sleep(0.001)  # workload
                handles.append(start(session, spec(name, array.size), array, array, -number))
            for handle in reversed(handles):
                handle.wait()
            sums.append(float(np.sum([array[[0, -1]] for array in arrays])))
        return sums

    with job(3, servers=2, credit_bytes=CELL_BYTES) as sessions:
        results = run_ranks(sessions, run)
    total = sum(range(len(names)))
    assert results == [[3 * 2.0 * (total + len(names) * step) for step in range(5)]] * 3
