"""``join``: ranks that are out of data take part in the others' rounds with nothing to add."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import byteps.torch as bps
from byteps.dtypes import ReduceOp
from byteps.errors import DeclarationError, PeerLeft
from byteps.session import Session
from byteps.testing import run_ranks

from .arrays import Job, exchange, job, spec


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), st.integers(2, 4), st.sampled_from(["parameter-server", "allreduce"]))
def test_uneven_numbers_of_steps(data: Any, size: int, communicator: str) -> None:
    """Named and unnamed sums, averages and gathers; twice, so that all go on together in between."""
    steps = [data.draw(st.lists(st.integers(0, 4), min_size=size, max_size=size)) for _ in range(2)]

    def train(session: Session) -> list[int]:
        last = []
        for phase in steps:
            for step in range(phase[session.rank]):
                here = [rank for rank in range(size) if phase[rank] > step]
                one = torch.full((3,), float(session.rank + 1))
                total = sum(rank + 1 for rank in here)
                for name in (None, "named", f"step {step}"):
                    summed = bps.push_pull(one, average=False, name=name, session=session)
                    assert summed.tolist() == [total] * 3
                mean = bps.push_pull(one, session=session)
                np.testing.assert_allclose(mean.numpy(), [total / size] * 3, rtol=1e-6)
                most = bps.allreduce(-one, op=bps.Max, name="most", session=session)
                assert most.tolist() == [-(min(here) + 1)] * 3
                rows = bps.allgather(one[: session.rank], session=session)
                assert rows.tolist() == [float(rank + 1) for rank in here for _ in range(min(rank, 3))]
                root = here[step % len(here)]
                assert bps.broadcast(one, root, session=session).tolist() == [root + 1] * 3
            last.append(bps.join(session=session))
        return last

    with job(size, 2, communicator=communicator) as sessions:
        results = run_ranks(sessions, train)
    assert all(result == results[0] for result in results), "all agree about who was last"
    for phase, last in zip(steps, results[0], strict=True):
        if phase.count(max(phase)) == 1:
            assert phase[last] == max(phase)


def test_rounds_in_flight_when_a_rank_joins(job: Job) -> None:
    """What others submitted before they hear of it completes as well."""
    submitted = threading.Event()
    what = spec("early", 50_000)

    def run(session: Session) -> int:
        if session.rank == 1:
            submitted.wait(10)
            return session.join()
        data = np.ones(what.length, np.float32)
        handles = []
        for name in ("early", "later"):
            one = spec(name, what.length)
            handles.append(bps.push_pull_async(torch.from_numpy(data), name=one.name, session=session))
        submitted.set()
        for handle in handles:
            assert bps.synchronize(handle).sum().item() == 0.5 * what.length
        return session.join()

    with job(2, servers=2) as sessions:
        assert len(set(run_ranks(sessions, run))) == 1


@pytest.mark.parametrize("steps", [[(3, 1), (2, 2)], [(1, 0), (1, 1)], [(0, 2), (2, 0), (1, 1)]])
def test_an_optimizer_goes_on_after_a_join(job: Job, steps: list[tuple[int, int]]) -> None:
    """Also on a rank that had no step before it, and with a parameter that only some steps use."""

    def train(session: Session) -> list[float]:
        used, rare = torch.nn.Parameter(torch.zeros(1)), torch.nn.Parameter(torch.zeros(1))
        plain = torch.optim.SGD([used, rare], lr=1.0)
        optimizer = bps.DistributedOptimizer(plain, [("used", used), ("rare", rare)], session=session)
        values = []
        for phase in steps:
            for step in range(phase[session.rank]):
                optimizer.zero_grad()
                (used + (rare if step == 1 else 0)).backward()
                optimizer.step()
            session.join()
            bps.broadcast_parameters({"used": used, "rare": rare}, root_rank=0, session=session)
            values.append(used.item())
        return values

    with job(2) as sessions:
        found = run_ranks(sessions, train)
    assert found[0] == found[1]
    assert found[0][-1] == found[0][-2] - steps[-1][0], "both had steps"


def test_a_joined_rank_is_no_root_and_takes_no_rows(job: Job) -> None:
    def run(session: Session) -> None:
        if session.rank != 0:
            with pytest.raises(DeclarationError, match="rank 0 has joined"):
                bps.broadcast(torch.ones(2), 0, name="b", session=session)
            with pytest.raises(DeclarationError, match="rank 0 has joined"):
                bps.alltoall(torch.ones(3), name="a", session=session)
        session.join()
        assert bps.broadcast(torch.full((2,), session.rank), 0, name="b", session=session).tolist() == [0, 0]

    with job(3, servers=2) as sessions:
        run_ranks(sessions, run)


def test_whoever_leaves_instead_is_named(job: Job) -> None:
    with job(2) as sessions:
        run_ranks(sessions, lambda one: exchange(one, spec("x", 3, op=ReduceOp.SUM), np.ones(3, np.float32)))
        sessions[1].shutdown()
        with pytest.raises(PeerLeft, match="rank 1 has shut down and will not join"):
            sessions[0].join()


def test_alone() -> None:
    with job(1) as sessions:
        assert sessions[0].join() == 0
