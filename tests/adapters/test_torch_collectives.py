"""Horovod's collectives against numpy: random shapes, dtypes, splits and numbers of ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import byteps.torch as bps
from byteps.errors import DeclarationError
from byteps.session import Session
from byteps.testing import cluster, run_ranks

from .conftest import Ranks

Array = npt.NDArray[Any]
DTYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
)
RANDOM = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
SIZES = st.integers(2, 4)
TRAILING = st.lists(st.integers(0, 4), max_size=3).map(tuple)
COMMUNICATORS = st.sampled_from(["parameter-server", "allreduce"])


def values(shape: Sequence[int], dtype: torch.dtype, seed: int) -> Tensor:
    """Small whole numbers, which every dtype sums exactly."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 6, tuple(shape), generator=generator).to(dtype)


def run(size: int, communicator: str, function: Callable[[Session], Any]) -> list[Any]:
    with cluster(size, 2, communicator=communicator, stall_timeout_s=20.0) as sessions:
        return run_ranks(sessions, function)


@RANDOM
@given(st.data(), SIZES, TRAILING, st.sampled_from(DTYPES), COMMUNICATORS)
def test_allgather(data: Any, size: int, trailing: tuple[int, ...], dtype: torch.dtype, kind: str) -> None:
    rows = data.draw(st.lists(st.integers(0, 5), min_size=size, max_size=size))
    given_tensors = [values((count, *trailing), dtype, rank) for rank, count in enumerate(rows)]
    expected = np.concatenate([one.numpy() for one in given_tensors])

    def gather(session: Session) -> list[Tensor]:
        own = given_tensors[session.rank]
        handle = bps.allgather_async(own, "later", session=session)
        unnamed = bps.allgather(own, session=session)
        again = [bps.allgather(own, "again", session=session) for _ in range(2)]
        group = bps.grouped_allgather([own, own[:1]], session=session)
        assert len(group[1]) == sum(min(count, 1) for count in rows)
        return [bps.synchronize(handle), unnamed, *again, group[0]]

    for results in run(size, kind, gather):
        for result in results:
            assert result.dtype == dtype
            np.testing.assert_array_equal(result.numpy(), expected)


@RANDOM
@given(st.data(), SIZES, TRAILING, st.sampled_from(DTYPES), COMMUNICATORS)
def test_alltoall(data: Any, size: int, trailing: tuple[int, ...], dtype: torch.dtype, kind: str) -> None:
    row = st.lists(st.integers(0, 3), min_size=size, max_size=size)
    splits = data.draw(st.lists(row, min_size=size, max_size=size))
    given_tensors = [values((sum(own), *trailing), dtype, rank) for rank, own in enumerate(splits)]
    parts = [
        np.split(one.numpy(), np.cumsum(own)[:-1]) for one, own in zip(given_tensors, splits, strict=True)
    ]

    def exchange(session: Session) -> list[tuple[Tensor, Tensor]]:
        own, to = given_tensors[session.rank], splits[session.rank]
        handle = bps.alltoall_async(own, torch.tensor(to, dtype=torch.int32), "later", session=session)
        return [bps.alltoall(own, to, session=session), bps.synchronize(handle)]

    for rank, results in enumerate(run(size, kind, exchange)):
        for result, received in results:
            np.testing.assert_array_equal(
                result.numpy(), np.concatenate([parts[sender][rank] for sender in range(size)])
            )
            assert received.tolist() == [splits[sender][rank] for sender in range(size)]
            assert received.dtype == torch.int32


@RANDOM
@given(
    SIZES,
    st.integers(0, 9),
    TRAILING,
    st.sampled_from(DTYPES),
    st.sampled_from([bps.Sum, bps.Average, bps.Min, bps.Max, bps.Product]),
    COMMUNICATORS,
)
def test_reducescatter(
    size: int, rows: int, trailing: tuple[int, ...], dtype: torch.dtype, op: Any, kind: str
) -> None:
    given_tensors = [values((rows, *trailing), dtype, rank) for rank in range(size)]
    stacked = np.stack([one.numpy() for one in given_tensors])
    reduced = {
        bps.Sum: lambda: stacked.sum(0, dtype=stacked.dtype),
        bps.Average: lambda: (stacked.astype(np.float64).sum(0) / size).astype(stacked.dtype),
        bps.Min: lambda: stacked.min(0),
        bps.Max: lambda: stacked.max(0),
        bps.Product: lambda: stacked.prod(0, dtype=stacked.dtype),
    }[op]()
    expected = np.array_split(reduced, size)

    def scatter(session: Session) -> list[Tensor]:
        own = given_tensors[session.rank]
        handle = bps.reducescatter_async(own, "later", op=op, session=session)
        group = bps.grouped_reducescatter([own, own], op=op, session=session)
        return [bps.reducescatter(own, op=op, session=session), bps.synchronize(handle), *group]

    for rank, results in enumerate(run(size, kind, scatter)):
        for result in results:
            assert result.dtype == dtype
            np.testing.assert_allclose(
                result.numpy(), expected[rank], rtol=1e-3 if dtype == torch.float16 else 1e-6
            )


@RANDOM
@given(st.data(), SIZES, st.sampled_from([bps.Sum, bps.Average, bps.Max]), COMMUNICATORS)
def test_grouped_allreduce(data: Any, size: int, op: Any, kind: str) -> None:
    shapes = data.draw(st.lists(TRAILING, min_size=1, max_size=4))
    dtypes = data.draw(st.lists(st.sampled_from(DTYPES), min_size=len(shapes), max_size=len(shapes)))

    def tensors(rank: int) -> list[Tensor]:
        return [
            values(shape, dtype, 10 * rank + position)
            for position, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True))
        ]

    def reduce(session: Session) -> list[list[Tensor]]:
        own = tensors(session.rank)
        new = bps.grouped_allreduce(own, op=op, prescale_factor=1.0, session=session)
        handle = bps.grouped_allreduce_async(own, name="later", op=op, session=session)
        later = bps.synchronize(handle)
        assert all(torch.equal(one, other) for one, other in zip(own, tensors(session.rank), strict=True))
        in_place = bps.grouped_allreduce_(own, op=op, session=session)
        assert all(one is other for one, other in zip(in_place, own, strict=True))
        return [new, later, in_place]

    stacked = [
        np.stack([one.numpy() for one in each]) for each in zip(*map(tensors, range(size)), strict=True)
    ]
    for results in run(size, kind, reduce):
        for group in results:
            for result, own in zip(group, stacked, strict=True):
                wanted = own.max(0) if op == bps.Max else own.astype(np.float64).sum(0)
                if op == bps.Average:
                    wanted = wanted / size
                np.testing.assert_allclose(
                    result.numpy(), wanted.astype(own.dtype), rtol=1e-3 if own.dtype == np.float16 else 1e-6
                )


def raised(function: Callable[[], Any]) -> str:
    try:
        function()
    except DeclarationError as error:
        return str(error)
    return ""


MISMATCHES: dict[str, Callable[[Session, Tensor], Any]] = {
    "allgather": lambda session, tensor: bps.allgather(tensor, "x", session=session),
    "grouped_allgather": lambda session, tensor: bps.grouped_allgather(
        [torch.zeros(2), tensor], "x", session=session
    ),
    "alltoall": lambda session, tensor: bps.alltoall(
        tensor, [0] * (session.size - 1) + [len(tensor)], "x", session=session
    ),
    "reducescatter": lambda session, tensor: bps.reducescatter(tensor, "x", session=session),
    "grouped_reducescatter": lambda session, tensor: bps.grouped_reducescatter(
        [torch.zeros(2), tensor], "x", session=session
    ),
    "grouped_allreduce": lambda session, tensor: bps.grouped_allreduce(
        [torch.zeros(2), tensor], name="x", session=session
    ),
}
OTHERS = {"shape": torch.zeros(4, 3), "dtype": torch.zeros(4, 2, dtype=torch.int64), "dims": torch.zeros(4)}


@pytest.mark.parametrize("what", OTHERS)
@pytest.mark.parametrize("kind", MISMATCHES)
def test_what_does_not_fit_raises_on_all_ranks_naming_two(ranks: Ranks, kind: str, what: str) -> None:
    call = MISMATCHES[kind]

    def attempt(session: Session) -> list[str]:
        own = OTHERS[what] if session.rank == 1 else torch.zeros(4, 2)
        fresh = raised(lambda: call(session, own))
        agreed = raised(lambda: call(session, torch.zeros(4, 2)))
        used = raised(lambda: call(session, own))
        return [fresh, agreed, used, raised(lambda: call(session, torch.zeros(4, 2)))]

    for fresh, agreed, used, again in ranks(3, attempt):
        assert "rank 1" in fresh, fresh
        assert "rank 0" in fresh or "rank 2" in fresh, fresh
        assert "rank" in used, used
        assert agreed == again == "", "the name is free for what fits"


def test_scalars_and_splits_are_refused(ranks: Ranks) -> None:
    def attempt(session: Session) -> None:
        for splits in ([3], [1, 1], [-1, 4], [3, 0, 0]):
            with pytest.raises(ValueError, match="splits"):
                bps.alltoall(torch.zeros(3), splits, session=session)
        for wrong in (torch.zeros(2), [[1, 2]], torch.tensor([True, True])):
            with pytest.raises(ValueError, match="splits="):
                bps.alltoall(torch.zeros(3), wrong, session=session)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="equal parts"):
            bps.alltoall(torch.zeros(3), session=session)
        for call in (bps.reducescatter, bps.allgather):
            with pytest.raises(ValueError, match="scalar"):
                call(torch.tensor(1.0), session=session)
        assert bps.allgather(torch.ones(1), session=session).tolist() == [1.0, 1.0]

    ranks(2, attempt)


def test_gradients_follow_the_rows(ranks: Ranks) -> None:
    def differentiate(session: Session) -> None:
        rank, size = session.rank, session.size
        weights = torch.arange(6.0)
        own = torch.ones(rank + 1, requires_grad=True)
        (bps.allgather(own, session=session) * weights * (rank + 1)).sum().backward()
        begin = rank * (rank + 1) // 2
        average = 2.0  # of the factors 1, 2, 3
        assert torch.equal(own.grad, average * weights[begin : begin + rank + 1])  # type: ignore[arg-type]

        sent = torch.ones(size, requires_grad=True)
        received, _ = bps.alltoall(sent, [1] * size, session=session)
        (received * (rank + 1)).sum().backward()
        assert sent.grad is not None
        assert sent.grad.tolist() == [1.0, 2.0, 3.0]

        for op, factor in ((bps.Average, 1.0), (bps.Sum, 3.0)):
            whole = torch.ones(4, requires_grad=True)
            (bps.reducescatter(whole, op=op, session=session) * (rank + 1)).sum().backward()
            assert whole.grad is not None
            assert whole.grad.tolist() == [factor * one for one in (1, 1, 2, 3)]

        pair = [torch.ones(2, requires_grad=True), torch.ones(1, requires_grad=True)]
        first, second = bps.grouped_allreduce(pair, op=bps.Sum, session=session)
        (first.sum() * (rank + 1) + second.sum()).backward()
        assert [one.grad.tolist() for one in pair if one.grad is not None] == [[6.0, 6.0], [3.0]]

    ranks(3, differentiate)


def test_ranks_that_start_in_different_orders_do_not_block_each_other(ranks: Ranks) -> None:
    """The later steps of what has begun go on by themselves, whatever the script waits for meanwhile."""

    def cross(session: Session) -> None:
        one = bps.allgather_async(torch.ones(2), "one", session=session)
        if session.rank == 0:
            bps.push_pull_inplace(torch.ones(3), name="two", session=session)
            bps.synchronize(one)
        else:
            bps.synchronize(one)
            bps.push_pull_inplace(torch.ones(3), name="two", session=session)

    ranks(2, cross)
