"""Variables that become the root's, at the start of training."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from byteps.adapters.calls import Call, Check, copy_call
from byteps.adapters.process_sets import ProcessSet
from byteps.adapters.variables import broadcast_arrays
from byteps.session import Session
from byteps.tensorflow.rounds import carry_out, dense
from byteps.tensorflow.tensors import array_of, check, label_of


def broadcast_variables(
    variables: Iterable[Any],
    root_rank: int,
    process_set: ProcessSet | None = None,
    inplace: bool = False,
    *,
    session: Session | None = None,
) -> Any:
    """Overwrite variables with the root's, for example a model's and its optimizer's after the first step.

    Args:
        variables: ``tf.Variable`` or Keras variables, in the same order on all ranks.
        root_rank: The rank whose values all get.
        process_set: The ranks that take part; all if not given.
        inplace: Accepted for Horovod scripts; variables are always overwritten.
        session: The session of ``init()`` if not given.

    Returns:
        In a graph, the operation that does it; eagerly None.

    Raises:
        ValueError: There are no variables, a dtype cannot be sent, or the root is no rank.
        NotInitialized: ``init()`` has not been called.
        DeclarationError: Ranks differ in a variable's shape or dtype.
    """
    variables = list(variables)
    if not variables:
        raise ValueError(
            "there are no variables to broadcast. A Keras model has none before it is built: call "
            "model.build(input_shape), or the model on a batch; an optimizer's come with "
            "optimizer.build(model.trainable_variables)"
        )
    labels = [label_of(variable, position) for position, variable in enumerate(variables)]
    if tf.executing_eagerly():
        arrays = [(label, array_of(variable)) for label, variable in zip(labels, variables, strict=True)]
        found = broadcast_arrays(arrays, root_rank, session, process_set)
        for variable, value in zip(variables, found, strict=True):
            variable.assign(value)
        return None

    def call_of(check: Check, label: str) -> Call:
        return copy_call(check, root_rank, f"variable.{label}", session, process_set)

    return _in_graph(variables, labels, call_of)


def broadcast_(
    variables: Iterable[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet | None = None,
    *,
    session: Session | None = None,
) -> list[Any]:
    """``broadcast_variables`` under Horovod's other name; ``name`` means nothing.

    Returns:
        The variables; in a graph their values after it.
    """
    variables = list(variables)
    done = broadcast_variables(variables, root_rank, process_set, session=session)
    if done is None:
        return variables
    with tf.control_dependencies([done]):
        return [tf.identity(variable) for variable in variables]


def _in_graph(variables: list[Any], labels: list[str], call_of: Callable[[Check, str], Call]) -> Any:
    items = []
    for variable, label in zip(variables, labels, strict=True):
        value = tf.convert_to_tensor(variable)

        def checked(name: str, op: Any, value: Any = value) -> None:
            check(value, name, op)

        items.append(dense(call_of(checked, label), value))
    results = carry_out(items)
    return tf.group(*[variable.assign(value) for variable, (value,) in zip(variables, results, strict=True)])


def broadcast_global_variables(root_rank: int) -> Any:
    """Make the operation that overwrites all global variables of a TensorFlow 1 graph with the root's.

    Raises:
        RuntimeError: Eager execution has no global variables.
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "broadcast_global_variables() works on a graph of TensorFlow 1. Under eager execution call "
            "broadcast_variables(model.variables, root_rank)"
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Overwrites all global variables with the root's when a session of TensorFlow 1 is made.

    Args:
        root_rank: The rank whose values all get.
        device: Accepted for Horovod scripts; means nothing.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        self._root_rank = root_rank
        self._operation: Any = None

    def begin(self) -> None:
        """See ``SessionRunHook``."""
        self._operation = broadcast_global_variables(self._root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """See ``SessionRunHook``."""
        session.run(self._operation)
