"""``allgather`` and ``alltoall``: rows of all ranks. Names and errors are as in ``ops``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from byteps.adapters import gathering
from byteps.adapters.arguments import check_several
from byteps.adapters.handles import ResultHandle
from byteps.adapters.later import InBackground
from byteps.adapters.process_sets import Group, ProcessSet, group_of
from byteps.adapters.reductions import shown
from byteps.adapters.signatures import takes
from byteps.dtypes import ReduceOp
from byteps.session import Session
from byteps.torch.collectives.memory import block_of, maker
from byteps.torch.reduction import Reduction
from byteps.torch.reductions.groups import differentiable_group
from byteps.torch.transfers import TensorHandle


class Gather:
    """An allgather with its arguments resolved."""

    def __init__(self, group: Group, named: tuple[str, bool]) -> None:
        self._group = group
        self._named = named
        self._counts: list[list[int]] = []

    def start(self, tensors: Sequence[Tensor]) -> ResultHandle[list[Tensor]]:
        """See ``GroupOperation.start``."""
        name = self._named[0]
        blocks = [block_of(tensor, name) for tensor in tensors]
        makers = [maker(tensor) for tensor in tensors]
        later = InBackground(gathering.allgather(self._group, self._named, blocks, makers))

        def results() -> list[Tensor]:
            found = later.wait()
            self._counts = [counts for _, counts in found]
            return [result.to(one.device) for (result, _), one in zip(found, tensors, strict=True)]

        return ResultHandle(name, later, results)

    def gradients(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """This rank's rows of the gradients, averaged over all ranks: Horovod's rule."""
        group, (name, _) = self._group, self._named
        own: list[Tensor] = []
        for position, (gradient, counts) in enumerate(zip(gradients, self._counts, strict=True)):
            average = Reduction(
                group.session,
                f"{name}.{position}.gradient",
                ReduceOp.AVERAGE,
                ephemeral=True,
                members=group.members,
            )
            averaged = average.out_of_place(gradient).synchronize()
            begin = sum(counts[: group.index])
            own.append(averaged[begin : begin + counts[group.index]])
        return own


class _Exchange:
    """An alltoall with its arguments resolved.

    Attributes:
        splits: How many rows go to each rank; None: equally many.
        received: How many rows came from each rank, once it is over.
    """

    def __init__(self, group: Group, named: tuple[str, bool], splits: Sequence[int] | None) -> None:
        self._group = group
        self._named = named
        self.splits = splits
        self.received: list[int] = []

    def start(self, tensors: Sequence[Tensor]) -> ResultHandle[list[Tensor]]:
        """See ``GroupOperation.start``."""
        (tensor,) = tensors
        name = self._named[0]
        later = InBackground(
            gathering.alltoall(self._group, self._named, block_of(tensor, name), self.splits, maker(tensor))
        )

        def results() -> list[Tensor]:
            result, self.received = later.wait()
            return [result.to(tensor.device)]

        return ResultHandle(name, later, results)

    def gradients(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Each row's gradient goes back to where the row came from."""
        name, _ = self._named
        back = _Exchange(self._group, (f"{name}.gradient", True), self.received)
        return back.start(gradients).synchronize()


def _gather_all(
    tensors: Sequence[Tensor],
    name: str | None = None,
    process_set: ProcessSet | None = None,
    *,
    session: Session | None = None,
) -> tuple[Gather, Sequence[Tensor]]:
    check_several("allgather", tensors)
    for tensor in tensors:
        block_of(tensor, shown("allgather", name))
    group = group_of(process_set, session)
    return Gather(group, group.name("allgather", name)), tensors


def _gather_one(
    tensor: Tensor,
    name: str | None = None,
    process_set: ProcessSet | None = None,
    *,
    session: Session | None = None,
) -> tuple[Gather, Sequence[Tensor]]:
    return _gather_all([tensor], name, process_set, session=session)


def _exchange(
    tensor: Tensor,
    splits: Sequence[int] | Tensor | None = None,
    name: str | None = None,
    process_set: ProcessSet | None = None,
    *,
    session: Session | None = None,
) -> tuple[_Exchange, Tensor]:
    block_of(tensor, shown("alltoall", name))
    checked = None if splits is None else gathering.whole_splits(splits)
    group = group_of(process_set, session)
    return _Exchange(group, group.name("alltoall", name), checked), tensor


@takes(_gather_one)
def allgather(gather: Gather, tensors: Sequence[Tensor]) -> Tensor:
    """Return the rows of all ranks' tensors, in the order of the ranks, as a new tensor.

    Gradients flow through it: a rank gets its own rows of the average over all ranks.

    Args:
        tensor: At least one dimension. The first may differ between ranks; dtype and the others may not.
        name: Identifies the tensor across ranks; by the order of calls if not given.
        process_set: The ranks that take part; all if not given.
        session: The session of ``init()`` if not given.

    Raises:
        ValueError, TypeError: The tensor cannot be sent.
        DeclarationError: Ranks differ in what must be equal; on all ranks, naming two.
    """
    return differentiable_group(tensors, gather)[0]


@takes(_gather_one)
def allgather_async(gather: Gather, tensors: Sequence[Tensor]) -> TensorHandle:
    """Start ``allgather``; ``synchronize`` returns the new tensor. ``tensor`` must not change until then."""
    return gather.start(tensors).map(lambda results: results[0])


@takes(_gather_all)
def grouped_allgather(gather: Gather, tensors: Sequence[Tensor]) -> list[Tensor]:
    """``allgather`` of several tensors together, in one exchange of shapes."""
    return differentiable_group(tensors, gather)


@takes(_gather_all)
def grouped_allgather_async(gather: Gather, tensors: Sequence[Tensor]) -> ResultHandle[list[Tensor]]:
    """Start ``grouped_allgather``; ``synchronize`` returns the list of new tensors."""
    return gather.start(tensors)


@takes(_exchange)
def alltoall(exchange: _Exchange, tensor: Tensor) -> Any:
    """Send rows to each rank and return what came, in the order of the senders, as a new tensor.

    Gradients flow through it, back to where the rows came from.

    Args:
        tensor: At least one dimension; dtype and all but the first must be equal on all ranks.
        splits: How many rows go to each rank; without it, equally many.
        name: Identifies the tensor across ranks; by the order of calls if not given.
        process_set: The ranks that take part; all if not given.
        session: The session of ``init()`` if not given.

    Returns:
        The new tensor; with ``splits``, a pair of it and how many rows came from each rank (int32).

    Raises:
        ValueError, TypeError: The tensor cannot be sent, or ``splits`` does not fit it.
        DeclarationError: Ranks differ in what must be equal; on all ranks, naming two.
    """
    (result,) = differentiable_group([tensor], exchange)
    return result if exchange.splits is None else (result, _as_splits(exchange.received))


@takes(_exchange)
def alltoall_async(exchange: _Exchange, tensor: Tensor) -> ResultHandle[tuple[Tensor, Tensor]]:
    """Start ``alltoall``; ``synchronize`` always returns the pair."""
    return exchange.start([tensor]).map(lambda results: (results[0], _as_splits(exchange.received)))


def _as_splits(received: Sequence[int]) -> Tensor:
    return torch.tensor(received, dtype=torch.int32)
