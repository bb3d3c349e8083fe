"""``push_pull`` and ``broadcast`` of tensors, eagerly and in graphs.

A name identifies a tensor across ranks and stands for one shape, dtype and op as long as the job runs. Eager
calls without a name are matched by their order, those in a graph by the function and their place in it.
``session=`` is only for processes that have more than the one session of ``init()``.

All calls raise ``TypeError`` or ``ValueError`` for arguments that cannot work, ``NotInitialized`` before
``init()``, and ``RuntimeError`` within ``tf.function(jit_compile=True)``. When ranks differ in a tensor's
shape, dtype or op, or a rank is lost, the call raises ``BytePSError``; in a graph the run does, as the
``tf.errors.OpError`` that TensorFlow makes of it, with the same words.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import tensorflow as tf

from byteps.adapters.calls import copy_call, reduction_call
from byteps.adapters.compression import compressed
from byteps.adapters.process_sets import ProcessSet
from byteps.adapters.reductions import resolve_op, shown
from byteps.dtypes import ReduceOp
from byteps.session import Session
from byteps.tensorflow.compression import Compression
from byteps.tensorflow.differentiable import differentiable
from byteps.tensorflow.rounds import carry_out, graph_name, sparse
from byteps.tensorflow.tensors import check, tensor_of


def push_pull(
    tensor: Any,
    scope: str = "",
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: ReduceOp | None = None,
    enable_async: bool = False,
    *,
    name: str | None = None,
    priority: int | None = None,
    session: Session | None = None,
) -> Any:
    """Reduce a tensor over all ranks and return the result as a new tensor that gradients flow through.

    Args:
        tensor: A tensor, variable, array or number of float64, float32, float16, bfloat16, int8, uint8,
            int16, int32, int64 or, without average, bool; any shape. Or ``IndexedSlices``: rows are joined.
        scope: Begins the name, where one is given.
        average: Old way to say ``op=Average`` (True) or ``op=Sum`` (False).
        device_dense, device_sparse, enable_async: Accepted for BytePS scripts; mean nothing.
        compression: One of ``Compression``, or a class like them.
        op: ``Average`` (the default), ``Sum``, ``Min``, ``Max`` or ``Product``.
        name: Identifies the tensor across ranks.
        priority: Higher numbers are sent first; 0 if not given.
        session: The session of ``init()`` if not given.
    """
    full_name = f"{scope}{name}" if scope and isinstance(name, str) else name
    call = Arguments(average, op, full_name, compression, priority=priority, session=session)
    return reduced(tensor, call)


@dataclass(frozen=True)
class Arguments:
    """Those of ``allreduce``, as they were given."""

    average: bool | None
    op: ReduceOp | None
    name: str | None
    compression: Any
    scales: tuple[float, float] = (1.0, 1.0)
    process_set: ProcessSet | None = None
    priority: int | None = None
    session: Session | None = None


@tf.autograph.experimental.do_not_convert
def reduced(value: Any, given: Arguments) -> Any:
    """A tensor, variable, array or number, or ``IndexedSlices``, reduced as ``push_pull`` says."""
    name = given.name
    rows = isinstance(value, tf.IndexedSlices)
    tensor = value.values if rows else tensor_of(value, shown("push_pull", name))
    op = resolve_op(given.average, given.op)
    name = graph_name(tensor, op, rows) if name is None else name
    call = reduction_call(
        partial(check, tensor),
        None,
        op,
        name,
        priority=given.priority,
        scales=given.scales,
        session=given.session,
        process_set=given.process_set,
    )
    if rows:
        ((values, indices),) = carry_out([sparse(call, value)])
        return tf.IndexedSlices(values, indices, value.dense_shape)
    return compressed(given.compression, [tensor], lambda wires: [differentiable(call, wires[0])])[0]


@tf.autograph.experimental.do_not_convert
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet | None = None,
    *,
    session: Session | None = None,
) -> Any:
    """Return the root's tensor as a new tensor that gradients flow through.

    As in Horovod, the root's gradient is the average of all ranks' gradients; elsewhere it is zero.

    Args:
        tensor: As for ``push_pull``, bool included; the same shape and dtype on all ranks.
        root_rank: The rank whose values all get.
        name: Identifies the tensor across ranks.
        ignore_name_scope: Accepted for Horovod scripts; means nothing.
        process_set: The ranks that take part; all if not given. ``root_rank`` is a global rank all the same.
        session: The session of ``init()`` if not given.
    """
    tensor = tensor_of(tensor, shown("broadcast", name))
    name = graph_name(tensor, ReduceOp.COPY) if name is None else name
    return differentiable(copy_call(partial(check, tensor), root_rank, name, session, process_set), tensor)
