"""All-reduce over gloo: every dtype, size and operation, random programs, ranks that leave."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from byteps.communicator import Meeting
from byteps.dtypes import DType, ReduceOp
from byteps.session import Session
from byteps.testing import run_ranks
from byteps.torch.distributed.engine import DeviceCollectives, engine
from tests.session import arrays
from tests.session.arrays import exchange, spec
from tests.session.test_programs import Program, check, programs
from tests.session.test_values import PARTITION_BYTES, check_all_cases
from tests.unit.test_reduce import bfloat_bits

job = partial(arrays.job, communicator="allreduce", engine=engine)


@pytest.mark.parametrize("turn", [1, 2, 3])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_dtype_and_size(size: int, turn: int) -> None:
    with job(size, partition_bytes=PARTITION_BYTES, collective_bytes=PARTITION_BYTES) as sessions:
        check_all_cases(sessions, turn)


def through_copies(meeting: Meeting) -> DeviceCollectives:
    """What NCCL gets, with gloo in its place and host memory as the device's."""
    gloo = engine(meeting)
    return DeviceCollectives("gloo", gloo._groups, torch.device("cpu"))


def test_every_dtype_and_size_by_groups_that_work_on_copies() -> None:
    with arrays.job(3, communicator="allreduce", engine=through_copies, collective_bytes=1 << 16) as sessions:
        check_all_cases(sessions, 1)


@settings(max_examples=30, deadline=None)
@given(programs())
@pytest.mark.timeout(120)
def test_random_programs(program: Program) -> None:
    check(job, program)


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16])
def test_averages_of_small_floats_do_not_overflow(dtype: DType) -> None:
    own = np.full(1000, 40000, np.float16)
    if dtype is DType.BFLOAT16:
        own = bfloat_bits(np.full(1000, 2.0**127, np.float32))
    what = spec("half", 1000, dtype, ReduceOp.AVERAGE)
    with job(3) as sessions:
        for result in run_ranks(sessions, lambda one: exchange(one, what, own)):
            assert np.array_equal(result, own)


def test_deterministic_sums_are_the_same_again() -> None:
    """Not in rank order, as a ring adds; but where a tensor is cut does not depend on what else is sent."""
    generator = np.random.default_rng(0)
    own = [generator.normal(size=200_000).astype(np.float32) for _ in range(3)]

    def run(session: Session, others: int) -> bytes:
        handles = []
        for number in range(others):
            data = np.ones(1000 * (number + 1), np.float32)
            handles.append(arrays.start(session, spec(f"other {number}", data.size), data, data))
        result = exchange(session, spec("sum", 200_000), own[session.rank])
        for handle in handles:
            handle.wait()
        return result.tobytes()

    found = set()
    for others in (0, 3, 9):
        with job(3, deterministic=True) as sessions:
            found |= set(run_ranks(sessions, partial(run, others=others)))
    assert len(found) == 1


def test_ranks_may_leave_as_soon_as_they_have_their_results() -> None:
    def run(session: Session) -> float:
        result = exchange(session, spec("x", 70_000), np.ones(70_000, np.float32))
        session.shutdown()
        return float(result[-1])

    for _ in range(10):
        with job(4) as sessions:
            assert run_ranks(sessions, run) == [4.0] * 4
