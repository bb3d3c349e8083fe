"""``allgather``: rows of all ranks. Names and errors are as in ``ops``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import tensorflow as tf

from byteps.adapters.calls import Call
from byteps.adapters.process_sets import Group, ProcessSet, group_of
from byteps.dtypes import ReduceOp
from byteps.session import Session
from byteps.tensorflow.ops import differentiable
from byteps.tensorflow.rounds import carry_out, gathered, graph_name
from byteps.tensorflow.tensors import check, tensor_of


@tf.autograph.experimental.do_not_convert
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
    label = "allgather" if name is None else repr(name)
    tensor = tensor_of(tensor, label)
    check(tensor, label, ReduceOp.COPY)
    if tensor.shape.rank == 0:
        raise ValueError(f"{label}: a scalar has no rows. Send tf.reshape(tensor, [1])")
    group = group_of(process_set, session)
    name = graph_name(tensor, ReduceOp.COPY, rows=True) if name is None else name
    return _differentiable(group, group.name("allgather", name), tensor)


def _differentiable(group: Group, named: tuple[str, bool], tensor: Any) -> Any:
    call = Call(
        group.session,
        f"{named[0]}.gradient",
        ReduceOp.AVERAGE,
        ephemeral=named[1],
        members=group.members,
    )

    @tf.custom_gradient
    def run(contribution: Any) -> tuple[Any, Any]:
        ((joined, counts),) = carry_out([gathered(group, named, contribution)])

        def gradient(upstream: Any) -> Any:
            back = replace(call, ephemeral=call.ephemeral and tf.executing_eagerly())
            average = differentiable(back, tf.convert_to_tensor(upstream))
            return tf.split(average, counts, num=group.size)[group.index]

        return joined, gradient

    return run(tensor)
