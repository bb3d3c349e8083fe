"""Calls that cannot work say so on every rank concerned, by name, and leave the job usable."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import byteps.torch as bps
from byteps.errors import DeclarationError, DuplicateNameError, NotInitialized, PeerLeft
from byteps.session import Session

from .conftest import Ranks

NEEDS_INIT: dict[str, Callable[[], object]] = {
    "rank": bps.rank,
    "size": bps.size,
    "local_rank": bps.local_rank,
    "local_size": bps.local_size,
    "barrier": bps.barrier,
    "get_pushpull_speed": bps.get_pushpull_speed,
    "declare": lambda: bps.declare("t"),
    "push_pull": lambda: bps.push_pull(torch.ones(1)),
    "push_pull_async": lambda: bps.push_pull_async(torch.ones(1)),
    "push_pull_inplace": lambda: bps.push_pull_inplace(torch.ones(1)),
    "allreduce": lambda: bps.allreduce(torch.ones(1)),
    "allreduce_": lambda: bps.allreduce_(torch.ones(1)),
    "broadcast": lambda: bps.broadcast(torch.ones(1), 0),
    "broadcast_async_": lambda: bps.broadcast_async_(torch.ones(1), 0),
    "broadcast_parameters": lambda: bps.broadcast_parameters([torch.ones(1)], 0),
    "broadcast_object": lambda: bps.broadcast_object(1),
    "allgather_object": lambda: bps.allgather_object(1),
}


@pytest.mark.parametrize("name", NEEDS_INIT)
def test_calls_before_init(name: str) -> None:
    with pytest.raises(NotInitialized, match=r"call init\(\) first") as caught:
        NEEDS_INIT[name]()
    assert isinstance(caught.value, ValueError)
    assert not bps.is_initialized()


def test_init_alone_and_again_after_shutdown() -> None:
    for _ in range(2):
        bps.init()
        try:
            bps.init()
            assert bps.is_initialized()
            assert (bps.rank(), bps.size(), bps.local_rank(), bps.local_size()) == (0, 1, 0, 1)
            bps.barrier()
            assert bps.push_pull(torch.ones(2), name="t").tolist() == [1.0, 1.0]
            since_epoch_ms, speed = bps.get_pushpull_speed()
            assert since_epoch_ms > 1_600_000_000_000
            assert speed >= 0
        finally:
            bps.shutdown()
        assert not bps.is_initialized()
        bps.shutdown()


BAD_TENSORS: list[tuple[Any, type[Exception], str]] = [
    ([1.0, 2.0], TypeError, "list"),
    (3.0, TypeError, "float"),
    (None, TypeError, "NoneType"),
    (torch.eye(3).to_sparse(), ValueError, "sparse.*to_dense"),
    (torch.zeros(2, dtype=torch.complex64), ValueError, "complex.*view_as_real"),
    (torch.zeros(2, dtype=torch.float8_e5m2), ValueError, "float8_e5m2 cannot be reduced"),
    (torch.zeros(2, device="meta"), ValueError, "meta"),
    (torch.ones(2, dtype=torch.bool), ValueError, "booleans have no average.*op=Sum"),
]
CALLS: dict[str, Callable[[Any, Session], object]] = {
    "push_pull": lambda t, s: bps.push_pull(t, name="n", session=s),
    "push_pull_async": lambda t, s: bps.push_pull_async(t, name="n", session=s),
    "allreduce_": lambda t, s: bps.allreduce_(t, name="n", session=s),
    "broadcast": lambda t, s: bps.broadcast(t, 0, name="n", session=s),
    "declare": lambda t, s: bps.declare("n", t, session=s),
}
BAD_CALLS = [
    (call, *bad)
    for call in CALLS
    for bad in BAD_TENSORS
    if not (call == "broadcast" and "booleans" in bad[2]) and not (call == "declare" and bad[0] is None)
]


@pytest.mark.parametrize(("call", "tensor", "error", "message"), BAD_CALLS, ids=lambda value: str(value)[:24])
def test_tensors_that_cannot_be_sent(
    ranks: Ranks, call: str, tensor: Any, error: type[Exception], message: str
) -> None:
    def work(session: Session) -> None:
        with pytest.raises(error, match=message) as caught:
            CALLS[call](tensor, session)
        assert "n" in str(caught.value)

    ranks(1, work)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"average": True, "op": bps.Sum}, ValueError),
        ({"op": 17}, ValueError),
        ({"op": "sum"}, ValueError),
        ({"average": 1}, TypeError),
        ({"name": 3}, TypeError),
    ],
    ids=repr,
)
def test_wrong_arguments(ranks: Ranks, options: dict[str, Any], error: type[Exception]) -> None:
    def work(session: Session) -> None:
        with pytest.raises(error):
            bps.allreduce(torch.ones(1), session=session, **options)

    ranks(1, work)


def test_more_wrong_arguments(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        with pytest.raises(TypeError, match="priority"):
            bps.push_pull(torch.ones(1), priority="high", session=session)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="root_rank"):
            bps.broadcast(torch.ones(1), True, session=session)
        with pytest.raises(TypeError):
            bps.broadcast(torch.ones(1), 0.5, session=session)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="name"):
            bps.declare(3, session=session)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="unexpected keyword"):
            bps.push_pull_async(torch.ones(1), nmae="typo", session=session)  # type: ignore[call-arg]
        with pytest.raises(ValueError, match="expanded"):
            bps.push_pull_inplace(torch.ones(1).expand(3), session=session)
        wait: Any
        for handle, wait in itertools.product((7, None, "handle"), (bps.synchronize, bps.poll)):
            with pytest.raises(ValueError, match="is not a handle"):
                wait(handle)

    ranks(1, work)


def test_a_name_still_in_flight(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        if session.rank == 0:
            handle = bps.push_pull_async(torch.ones(2), name="t", session=session)
            with pytest.raises(DuplicateNameError, match=r"push_pull\.t") as caught:
                bps.push_pull_async(torch.ones(2), name="t", session=session)
            assert isinstance(caught.value, ValueError)
            session.barrier()
        else:
            session.barrier()
            handle = bps.push_pull_async(torch.ones(2), name="t", session=session)
        assert bps.synchronize(handle).tolist() == [1.0, 1.0]

    ranks(2, work)


MISMATCHES: dict[str, Callable[[int, Session], object]] = {
    "shape": lambda rank, s: bps.push_pull(torch.ones(2 + rank), name="t", session=s),
    "dimensions": lambda rank, s: bps.push_pull(torch.ones((4,) if rank else (2, 2)), name="t", session=s),
    "dtype": lambda rank, s: bps.push_pull(
        torch.ones(2, dtype=torch.float64 if rank else torch.float32), name="t", session=s
    ),
    "op": lambda rank, s: bps.allreduce(torch.ones(2), op=bps.Min if rank else bps.Max, name="t", session=s),
    "scale": lambda rank, s: bps.allreduce(torch.ones(2), name="t", prescale_factor=1.0 + rank, session=s),
    "root": lambda rank, s: bps.broadcast(torch.ones(2), rank, name="t", session=s),
    "unnamed": lambda rank, s: bps.push_pull(torch.ones(2 + rank), session=s),
}


@pytest.mark.parametrize("kind", MISMATCHES)
def test_ranks_that_differ_all_get_an_error_and_may_go_on(ranks: Ranks, kind: str) -> None:
    def work(session: Session) -> None:
        with pytest.raises(DeclarationError, match=r"rank \d.*rank \d") as caught:
            MISMATCHES[kind](session.rank, session)
        assert isinstance(caught.value, ValueError)
        session.barrier()
        assert bps.push_pull(torch.ones(3), name="t", session=session).tolist() == [1.0, 1.0, 1.0]

    ranks(2, work)


def test_the_same_name_with_another_size_on_one_rank(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        bps.push_pull(torch.ones(2), name="t", session=session)
        with pytest.raises(DeclarationError, match=r"push_pull\.t"):
            bps.push_pull(torch.ones(5), name="t", session=session)

    ranks(1, work)


def test_a_rank_that_leaves_is_an_error_on_those_that_wait_for_it(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        bps.push_pull(torch.ones(2), name="t", session=session)
        if session.rank == 1:
            session.shutdown()
        else:
            with pytest.raises(PeerLeft, match=r"push_pull\.t"):
                bps.push_pull(torch.ones(2), name="t", session=session)

    ranks(2, work)


def test_init_takes_the_arguments_of_old_scripts() -> None:
    try:
        bps.init(lazy=False, comm=None, process_sets=None)
        assert (bps.rank(), bps.size()) == (0, 1)
    finally:
        bps.shutdown()
    with pytest.raises(ValueError, match="process_sets="):
        bps.init(process_sets=[[0]])  # type: ignore[list-item]
