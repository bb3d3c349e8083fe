"""Tensors that go over to a second connection while rounds go on: sums stay right before, then and after."""

from __future__ import annotations

import numpy as np
import pytest

from byteps.communicator.parameter_server import ParameterServer
from byteps.dtypes import ReduceOp
from byteps.session import Session
from byteps.testing import run_ranks

from . import arrays
from .arrays import exchange, spec, start

LENGTHS = (5, 300_000, 70_000)
STEPS = 40
AT_ONCE = {"connection_rate": 0.0}


def connections(session: Session) -> int:
    assert isinstance(session.communicator, ParameterServer)
    return session.communicator.connections


def train(session: Session, size: int) -> list[int]:
    """Steps of several tensors and a broadcast; returns over how many connections each went."""
    used = []
    for step in range(STEPS):
        data = [np.full(length, session.rank + step, np.float32) for length in LENGTHS]
        handles = [
            start(session, spec(f"layer{number}", each.size), each, each, -number)
            for number, each in enumerate(data)
        ]
        state = np.full(100_000, step, np.float32)
        copied = exchange(session, spec("state", 100_000, op=ReduceOp.COPY, root=0), state)
        assert np.all(copied == step)
        for handle, each in zip(handles, data, strict=True):
            handle.wait()
            assert np.all(each == size * step + sum(range(size)))
        used.append(connections(session))
    late = exchange(session, spec("late", 200_000), np.ones(200_000, np.float32))
    assert np.all(late == size)
    return used


@pytest.mark.parametrize(("size", "servers"), [(1, 1), (3, 2)])
def test_sums_are_right_before_during_and_after(size: int, servers: int) -> None:
    with arrays.job(size, servers, apart=True, force_distributed=True, **AT_ONCE) as sessions:
        used = run_ranks(sessions, lambda session: train(session, size))
    assert all(one == sorted(one) for one in used)
    assert {(one[0], one[-1]) for one in used} == {(1, 2)}


@pytest.mark.parametrize(
    "settings",
    [{"connection_rate": 1e12}, {"connections": 1, **AT_ONCE}, {"apart": False, **AT_ONCE}],
    ids=["slow", "set", "one host"],
)
def test_one_connection_stays_one(settings: dict[str, object]) -> None:
    with arrays.job(2, 1, **{"apart": True, **settings}) as sessions:
        used = run_ranks(sessions, lambda session: train(session, 2))
    assert set(used[0] + used[1]) == {1}


def test_a_workers_own_credit_stays_its_own() -> None:
    settings = {"apart": True, "credit_bytes": 128 << 10, **AT_ONCE}
    with arrays.job(2, 1, **settings) as sessions:
        run_ranks(sessions, lambda session: train(session, 2))
        reports = [session.communicator.traffic() for session in sessions]
    assert all(report.endswith("credit 128.0 KiB over 2 connections") for report in reports)
