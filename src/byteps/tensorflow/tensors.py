"""Which TensorFlow tensors can be sent, and their bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from byteps.adapters.arrays import Array, element_type
from byteps.adapters.calls import tensor_spec
from byteps.adapters.reductions import shown
from byteps.dtypes import ReduceOp


def tensor_of(value: Any, name: str) -> Any:
    """A dense tensor of a tensor, variable, array or number.

    Args:
        value: What the caller gave.
        name: Named in errors.

    Raises:
        TypeError: TensorFlow makes no tensor of it.
        ValueError: It is sparse or ragged.
    """
    if isinstance(value, tf.SparseTensor):
        raise ValueError(f"{name}: sparse tensors cannot be sent. Send tf.sparse.to_dense(tensor)")
    if isinstance(value, tf.RaggedTensor):
        raise ValueError(f"{name}: ragged tensors cannot be sent. Send tensor.to_tensor()")
    try:
        return tf.convert_to_tensor(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name}: TensorFlow makes no tensor of a {type(value).__name__}: {error}") from error


def check(tensor: Any, name: str, op: ReduceOp) -> None:
    """Raise ValueError if a tensor's dtype cannot be sent, or not with this operator."""
    tensor_spec(name, element_type(tensor.dtype.name, name), (), op)


def rows_to_send(value: Any, kind: str, name: str | None, op: ReduceOp = ReduceOp.COPY) -> Any:
    """A tensor whose rows can be sent.

    Args:
        value: What the caller gave.
        kind: Of the call, named in errors where there is no name.
        name: As the caller gave it.
        op: The operator.

    Raises:
        TypeError, ValueError: It cannot be sent, or is a scalar.
    """
    label = shown(kind, name)
    tensor = tensor_of(value, label)
    check(tensor, label, op)
    if tensor.shape.rank == 0:
        raise ValueError(f"{label}: a scalar has no rows. Send tf.reshape(tensor, [1])")
    return tensor


def array_of(tensor: Any) -> Array:
    """A tensor's values; of a CPU tensor its own memory, which must not be written to."""
    return np.asarray(tensor)


def label_of(variable: Any, position: int) -> str:
    """What a variable calls itself: Keras's path, or TensorFlow's name."""
    found = getattr(variable, "path", None)
    if found is None and isinstance(variable, tf.Variable):
        found = variable.name
    return f"source.{position}" if found is None else str(found)
