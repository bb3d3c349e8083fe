"""``allgather`` and ``alltoall``: rows that move between ranks. Names and errors are as in ``ops``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from byteps.adapters.arguments import Among, check_several, group_among
from byteps.adapters.arrays import Array, GatherRound
from byteps.adapters.calls import Call
from byteps.adapters.collectives import ExchangeRound
from byteps.adapters.gathering import whole_splits
from byteps.adapters.process_sets import Group, ProcessSet
from byteps.dtypes import ReduceOp
from byteps.session import Session
from byteps.tensorflow.differentiable import Reduction, differentiable_group, once
from byteps.tensorflow.rounds import Item, carry_out_one, graph_name, rows_of
from byteps.tensorflow.tensors import rows_to_send

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Gather:
    """An allgather with its arguments resolved; see ``Operation``."""

    def __init__(self, group: Group, named: tuple[str, bool]) -> None:
        self._group = group
        self._named = named
        self._counts: list[Any] = []

    def start(self, tensors: Sequence[Any]) -> list[Any]:
        """See ``Operation``."""

        def begin(*arrays: Array) -> GatherRound:
            return GatherRound(self._group, self._named, arrays)

        counts = (tf.int64, tf.TensorShape([self._group.size]))
        results = [*map(rows_of, tensors), *([counts] * len(tensors))]
        found = carry_out_one(Item(begin, tensors, results))
        self._counts = found[len(tensors) :]
        return found[: len(tensors)]

    def gradients(self, upstream: Sequence[Any]) -> list[Any]:
        """This rank's rows of the gradients, averaged over all ranks: Horovod's rule."""
        group, (name, ephemeral) = self._group, self._named
        calls = [
            Call(
                group.session,
                f"{name}.{position}.gradient",
                ReduceOp.AVERAGE,
                ephemeral=once(ephemeral),
                members=group.members,
            )
            for position in range(len(upstream))
        ]
        averages = differentiable_group(Reduction(calls), upstream)
        pairs = zip(averages, self._counts, strict=True)
        return [tf.split(average, counts, num=group.size)[group.index] for average, counts in pairs]


class _Exchange:
    """An alltoall with its arguments resolved; see ``Operation``.

    Attributes:
        received: How many rows came from each rank, once it has started.
    """

    def __init__(self, group: Group, named: tuple[str, bool], splits: Any) -> None:
        self._group = group
        self._named = named
        self._splits = splits
        self.received: Any = None

    def start(self, tensors: Sequence[Any]) -> list[Any]:
        """See ``Operation``."""

        def begin(array: Array, splits: Array | None = None) -> ExchangeRound:
            return ExchangeRound(self._group, self._named, array, splits)

        inputs = [*tensors, *([] if self._splits is None else [self._splits])]
        results = [rows_of(tensors[0]), (tf.int32, tf.TensorShape([self._group.size]))]
        found, self.received = carry_out_one(Item(begin, inputs, results))
        return [found]

    def gradients(self, upstream: Sequence[Any]) -> list[Any]:
        """Each row's gradient goes back to where the row came from."""
        name, ephemeral = self._named
        back = _Exchange(self._group, (f"{name}.gradient", once(ephemeral)), self.received)
        return differentiable_group(back, upstream)


def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet | None = None,
    *,
    session: Session | None = None,
) -> Any:
    """Return the rows of all ranks' tensors, in the order of the ranks, as a new tensor.

    Gradients flow through it: as in Horovod, a rank gets its own rows of the average over all ranks.

    Args:
        tensor: At least one dimension. The first may differ between ranks; dtype and the others may not.
        name: Identifies the tensor across ranks.
        ignore_name_scope: Accepted for Horovod scripts; means nothing.
        process_set: The ranks that take part; all if not given.
        session: The session of ``init()`` if not given.

    Raises:
        ValueError, TypeError: The tensor cannot be sent.
        DeclarationError: Ranks differ in what must be equal; on all ranks, naming two.
    """
    return grouped_allgather([tensor], name, process_set=process_set, session=session)[0]


@tf.autograph.experimental.do_not_convert
def grouped_allgather(tensors: Sequence[Any], name: str | None = None, **among: Unpack[Among]) -> list[Any]:
    """``allgather`` of several tensors together, in one exchange of shapes."""
    check_several("allgather", tensors)
    tensors = [rows_to_send(tensor, "allgather", name) for tensor in tensors]
    name = graph_name(tensors[0], ReduceOp.COPY, rows=True) if name is None else name
    group = group_among(**among)
    return differentiable_group(Gather(group, group.name("allgather", name)), tensors)


@tf.autograph.experimental.do_not_convert
def alltoall(tensor: Any, splits: Any = None, name: str | None = None, **among: Unpack[Among]) -> Any:
    """Send rows to each rank and return what came, in the order of the senders, as a new tensor.

    Gradients flow through it, back to where the rows came from.

    Args:
        tensor: At least one dimension; dtype and all but the first must be equal on all ranks.
        splits: How many rows go to each rank; without it, equally many. In a graph it may be a tensor whose
            values are known only when the graph runs.
        name: Identifies the tensor across ranks.
        among: ``process_set``, ``session``, ``ignore_name_scope``: see ``allgather``.

    Returns:
        The new tensor; with ``splits``, a pair of it and how many rows came from each rank (int32).

    Raises:
        ValueError, TypeError: The tensor cannot be sent, or ``splits`` does not fit it.
        DeclarationError: Ranks differ in what must be equal; on all ranks, naming two.
    """
    tensor = rows_to_send(tensor, "alltoall", name)
    name = graph_name(tensor, ReduceOp.COPY, rows=True) if name is None else name
    group = group_among(**among)
    if splits is not None and not tf.is_tensor(splits):
        splits = tf.constant(whole_splits(splits), tf.int32)
    exchange = _Exchange(group, group.name("alltoall", name), splits)
    (result,) = differentiable_group(exchange, [tensor])
    return result if splits is None else (result, exchange.received)
