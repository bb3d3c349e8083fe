"""Rounds of TensorFlow tensors, eagerly or as nodes of a graph.

In a graph a node starts a round and gives its number; another takes the numbers of a group and waits.
Waiting holds a thread of TensorFlow's pool, and ranks that hold all theirs in waits for different tensors
would never start what the others wait for. So the node that waits for a group comes after all its starts.
Both kinds are stateful: ``tf.function`` runs such nodes, those of other
groups and of functions within it too, in the order of the program, which is the same on all ranks. Starts
are made last layer first, as the backward pass computes, so that it goes on while gradients travel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import tensorflow as tf

from byteps.adapters.arrays import Array, ArrayRound, Round, Rounds
from byteps.adapters.calls import Call
from byteps.adapters.rows import RowRound
from byteps.dtypes import ReduceOp
from byteps.tensorflow.tensors import array_of

_COUNT: Final = "byteps/unnamed"


@dataclass(frozen=True)
class Item:
    """One round of a group.

    Attributes:
        begin: Starts it, given the arrays of ``inputs``.
        inputs: What this rank contributes.
        results: Dtypes and static shapes of the results.
    """

    begin: Callable[..., Round]
    inputs: Sequence[Any]
    results: Sequence[tuple[Any, Any]]


def dense(call: Call, tensor: Any) -> Item:
    """A round of a dense tensor; its result is one tensor of the same static shape."""
    return Item(partial(ArrayRound, call), [tensor], [(tensor.dtype, tensor.shape)])


def sparse(call: Call, slices: Any) -> Item:
    """A round of ``IndexedSlices``; its results are values and indices, however many."""
    inputs = [slices.values, slices.indices]
    return Item(partial(RowRound, call), inputs, [rows_of(tensor) for tensor in inputs])


def rows_of(tensor: Any) -> tuple[Any, Any]:
    """Dtype and static shape of a tensor's rows, however many."""
    return tensor.dtype, tf.TensorShape([None]).concatenate(tensor.shape[1:])


@tf.autograph.experimental.do_not_convert
def carry_out(items: Sequence[Item]) -> list[list[Any]]:
    """Carry out rounds that are all in flight together.

    Args:
        items: In the order in which results will be needed.

    Returns:
        The results of each item as new tensors.

    Raises:
        RuntimeError: Within a function that XLA compiles.
        BytePSError: A round failed; in a graph when it runs.
    """
    if tf.executing_eagerly():
        begun = [item.begin(*map(array_of, item.inputs)) for item in items]
        return [[tf.convert_to_tensor(result) for result in each.wait()] for each in begun]
    graph = tf.compat.v1.get_default_graph()
    refuse_xla(graph)
    rounds = Rounds()
    numbers = [_start(rounds, item) for item in reversed(items)][::-1]
    with tf.control_dependencies(numbers):
        return _wait(rounds, numbers, items)


def carry_out_one(item: Item) -> list[Any]:
    """The results of one round; errors are those of ``carry_out``."""
    return list(carry_out([item])[0])


def _start(rounds: Rounds, item: Item) -> Any:
    @tf.autograph.experimental.do_not_convert
    def start(*arrays: Array) -> Any:
        return np.int64(rounds.add(item.begin(*arrays)))

    return tf.numpy_function(start, item.inputs, tf.int64, name="byteps_start")


def _wait(rounds: Rounds, numbers: Sequence[Any], items: Sequence[Item]) -> list[list[Any]]:
    """One node for all: each costs a tenth of a millisecond, and what comes last is waited for anyway."""

    @tf.autograph.experimental.do_not_convert
    def wait(*numbers: Any) -> list[Array]:
        return rounds.wait_all(numbers)

    known = [result for item in items for result in item.results]
    found = tf.numpy_function(wait, numbers, [dtype for dtype, _ in known], name="byteps_wait")
    for result, (_, shape) in zip(found, known, strict=True):
        result.set_shape(shape)
    rest = iter(found)
    return [[next(rest) for _ in item.results] for item in items]


def graph_name(tensor: Any, op: ReduceOp, rows: bool = False) -> str | None:
    """What identifies an unnamed tensor of a graph, also when it is traced again; None if eager.

    Args:
        tensor: What is sent.
        op: The operator.
        rows: Whether ranks may differ in the number of rows.
    """
    if tf.executing_eagerly():
        return None
    graph = tf.compat.v1.get_default_graph()
    count = graph.get_collection_ref(_COUNT)
    count.append(None)
    shape = [None, *tensor.shape[1:]] if rows else tensor.shape
    what = f"{op.name.lower()} of {tensor.dtype.name}{shape}"
    # An eager tensor that the function captures is called by a number, which differs between ranks.
    node = "captured" if tensor.op.name.isdigit() else tensor.op.name
    return f"{getattr(graph, 'name', 'graph')}.{len(count)}.{node}, {what}"


def looked_up(look_up: Callable[[], int]) -> Any:
    """An int32 scalar; in a graph it is looked up each time that the graph runs."""
    if tf.executing_eagerly():
        return tf.constant(look_up(), tf.int32)
    found = tf.numpy_function(lambda: np.int32(look_up()), [], tf.int32)
    found.set_shape(())
    return found


def refuse_xla(graph: Any) -> None:
    """Raise RuntimeError if XLA compiles a graph."""
    while graph is not None:
        context = graph._get_control_flow_context()
        if context is not None and context.IsXLAContext():
            raise RuntimeError(
                "byteps cannot send tensors from a function that XLA compiles: compiled code cannot call "
                "back. Pass jit_compile=False to tf.function, or to model.compile"
            )
        graph = getattr(graph, "outer_graph", None)
