"""Process sets: some of the ranks among themselves, while the others do something else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import byteps.torch as bps
from byteps.errors import ConfigError, DeclarationError
from byteps.session import Session
from byteps.testing import cluster, run_ranks

LIMITS: dict[str, Any] = {"stall_timeout_s": 20.0}


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), st.integers(2, 4))
def test_values_are_those_of_the_members(data: Any, size: int) -> None:
    members = sorted(data.draw(st.sets(st.integers(0, size - 1), min_size=1)))
    op = data.draw(st.sampled_from([bps.Average, bps.Sum, bps.Max]))
    root = data.draw(st.sampled_from(members))
    rows = [data.draw(st.integers(0, 3)) for _ in range(size)]

    def run(session: Session) -> None:
        chosen = bps.add_process_set(members, session=session) if len(members) < size else None
        rank = session.rank
        everybody = bps.push_pull(torch.ones(1), average=False, name="same", session=session)
        if rank in members:
            some: dict[str, Any] = {"process_set": chosen, "session": session}
            values = np.array([10.0 * one for one in members])
            name = "same" if chosen else "other"
            reduced = bps.allreduce(torch.full((5,), 10.0 * rank), op=op, name=name, **some)
            wanted = {bps.Average: values.mean(), bps.Sum: values.sum(), bps.Max: values.max()}[op]
            np.testing.assert_allclose(reduced.numpy(), np.full(5, wanted), rtol=1e-6)
            assert bps.broadcast(torch.full((3,), rank), root, **some).tolist() == [root] * 3
            gathered = bps.allgather(torch.full((rows[rank],), rank), **some)
            assert gathered.tolist() == [one for one in members for _ in range(rows[one])]
            received = bps.alltoall(torch.full((len(members),), rank), **some)
            assert received.tolist() == members
            scattered = bps.reducescatter(torch.ones(len(members)), op=bps.Sum, **some)
            assert scattered.tolist() == [float(len(members))]
            assert bps.grouped_allreduce([torch.ones(1)], op=bps.Sum, **some)[0].item() == len(members)
        assert everybody.item() == size
        if chosen is not None:
            assert chosen.included() == (rank in members)
            assert chosen.ranks == members
            assert chosen.size() == len(members)
            assert bps.remove_process_set(chosen, session=session)
            assert not bps.remove_process_set(chosen, session=session)
            assert chosen.process_set_id is None

    with cluster(size, 2, **LIMITS) as sessions:
        run_ranks(sessions, run)


def test_sets_do_not_wait_for_each_other() -> None:
    """Odd and even ranks use the same names at the same time, different numbers of times."""

    def run(session: Session) -> float:
        even = bps.add_process_set([0, 2], session=session)
        odd = bps.add_process_set([3, 1], session=session)
        own = even if session.rank % 2 == 0 else odd
        assert own.rank() == session.rank // 2
        value = torch.tensor([float(session.rank)])
        several = range(3 + 4 * (session.rank % 2))
        return [bps.allreduce(value, name="x", process_set=own, session=session) for _ in several][-1].item()

    with cluster(4, 2, **LIMITS) as sessions:
        assert run_ranks(sessions, run) == [1.0, 2.0, 1.0, 2.0]


def test_wrong_use_is_refused() -> None:
    for ranks in ([], [-1], [0, 0], ["a"], 5):
        with pytest.raises(ValueError, match="ProcessSet"):
            bps.ProcessSet(ranks)  # type: ignore[arg-type]
    fresh = bps.ProcessSet([1, 0])
    assert fresh.ranks == [0, 1]
    assert fresh.process_set_id is fresh.size() is fresh.rank() is fresh.included() is None
    assert bps.global_process_set.process_set_id == 0
    assert bps.global_process_set.ranks is None

    def run(session: Session) -> None:
        chosen = bps.add_process_set([0], session=session)
        with pytest.raises(ValueError, match="exists already"):
            bps.add_process_set([0], session=session)
        with pytest.raises(ValueError, match="registered already"):
            bps.add_process_set(chosen, session=session)
        with pytest.raises(ValueError, match="ranks are 0 to 1"):
            bps.add_process_set([1, 2], session=session)
        with pytest.raises(ValueError, match="exists already"):
            bps.add_process_set([0, 1], session=session)
        with pytest.raises(ValueError, match="all must add the same"):
            bps.add_process_set([session.rank], session=session)
        with pytest.raises(ValueError, match="not registered"):
            bps.allreduce(torch.ones(1), process_set=bps.ProcessSet([1]), session=session)
        with pytest.raises(TypeError, match="must be a ProcessSet"):
            bps.allreduce(torch.ones(1), process_set=[0], session=session)  # type: ignore[arg-type]
        if session.rank == 1:
            with pytest.raises(ValueError, match="rank 1 is not in"):
                bps.allgather(torch.ones(1), process_set=chosen, session=session)
            with pytest.raises(ValueError, match="rank 1 is not in"):
                chosen.rank()
        else:
            with pytest.raises(ValueError, match="not in the process set"):
                bps.broadcast(torch.ones(1), 1, process_set=chosen, session=session)
        assert not bps.remove_process_set(bps.global_process_set, session=session)

    with cluster(2, 1, **LIMITS) as sessions:
        run_ranks(sessions, run)


def test_members_that_differ_get_an_error_and_others_none() -> None:
    def run(session: Session) -> None:
        chosen = bps.add_process_set([0, 1], session=session)
        if session.rank < 2:
            with pytest.raises(DeclarationError, match=r"rank [01].*rank [01].*among ranks 0, 1"):
                bps.allreduce(torch.ones(1 + session.rank), name="x", process_set=chosen, session=session)
            assert bps.allreduce(torch.ones(1), name="x", process_set=chosen, session=session).item() == 1
        bps.push_pull(torch.ones(1), name="x", session=session)

    with cluster(3, 2, **LIMITS) as sessions:
        run_ranks(sessions, run)


def test_all_reduce_refuses_them() -> None:
    def run(session: Session) -> None:
        with pytest.raises(ConfigError, match="process sets need servers"):
            bps.add_process_set([0], session=session)

    with cluster(2, communicator="allreduce", **LIMITS) as sessions:
        run_ranks(sessions, run)


def test_a_set_can_be_registered_again_after_a_shutdown() -> None:
    sets = [bps.ProcessSet([1]) for _ in range(2)]

    def use(session: Session) -> float:
        own = bps.add_process_set(sets[session.rank], session=session)
        if session.rank == 0:
            return 0.0
        return bps.allreduce(torch.ones(1), process_set=own, session=session).item()

    for _ in range(2):
        with cluster(2, 1, **LIMITS) as sessions:
            assert run_ranks(sessions, use) == [0.0, 1.0]
        assert [one.process_set_id for one in sets] == [None, None]
