"""The contract suite's TensorFlow: eager calls, and the same within a tf.function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import byteps.tensorflow as bps
from byteps.adapters.calls import reduction_call
from byteps.errors import DeclarationError
from byteps.session import Session
from byteps.tensorflow.rounds import carry_out, dense

from .interface import LEARNING_RATE, Array, initial_parameters
from .tensorflow_threads import tf


def _eager(session: Session, array: Array, **options: Any) -> Array:
    result: Array = bps.allreduce(tf.constant(array), session=session, **options).numpy()
    return result


def _compiled(session: Session, array: Array, **options: Any) -> Array:
    @tf.function
    def call(tensor: Any) -> Any:
        result = bps.allreduce(tensor, session=session, **options)
        assert result.shape == tensor.shape
        return result

    found: Array = _plainly(lambda: call(tf.constant(array))).numpy()
    return found


def _plainly(run: Callable[[], Any]) -> Any:
    """Raises what was raised within a graph: TensorFlow makes an error of its own of it, with its words."""
    try:
        return run()
    except tf.errors.OpError as error:
        if "DeclarationError" in error.message:
            raise DeclarationError(error.message) from error
        raise


class TensorFlowDriver:
    """See ``Driver``."""

    def __init__(self) -> None:
        self.module = bps
        self.dtypes = ("float64", "float32", "float16", "int8", "uint8", "int16", "int32", "int64", "bool")
        self.alternatives = {"eager": _eager, "compiled": _compiled}
        self.gradients_in_order = ("weights_0:0", "weights_1:0", "weights_2:0", "weights_3:0")

    def together(self, session: Session, arrays: Mapping[str, Array]) -> dict[str, Array]:
        calls = [reduction_call(lambda *_: None, False, None, name, session=session) for name in arrays]

        @tf.function
        def run() -> list[Any]:
            items = [
                dense(call, tf.constant(array)) for call, array in zip(calls, arrays.values(), strict=True)
            ]
            return [result for (result,) in carry_out(items)]

        return {name: found.numpy() for name, found in zip(arrays, run(), strict=True)}

    def broadcast(self, session: Session, array: Array, root: int, name: str | None) -> Array:
        found: Array = bps.broadcast(tf.constant(array), root, name, session=session).numpy()
        return found

    def broadcast_variables(self, session: Session, arrays: Sequence[Array], root: int) -> list[Array]:
        variables = [tf.Variable(array) for array in arrays]
        bps.broadcast_variables(variables, root, session=session)
        return [variable.numpy() for variable in variables]

    def gradient(self, session: Session, array: Array, weights: Array, **options: Any) -> Array:
        @tf.function
        def compiled(tensor: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(tensor)
                loss = tf.reduce_sum(bps.allreduce(tensor, session=session, **options) * weights)
            return tape.gradient(loss, tensor)

        found = compiled(tf.constant(array))
        again = compiled.python_function(tf.constant(array))
        assert tf.reduce_all(found == again)
        result: Array = found.numpy()
        return result

    def train(
        self, session: Session | None, batches: Sequence[tuple[Array, Array]], **options: Any
    ) -> list[Array]:
        variables = [
            tf.Variable(array, name=f"weights_{position}")
            for position, array in enumerate(initial_parameters())
        ]

        @tf.function
        def step(inputs: Any, targets: Any) -> None:
            with tf.GradientTape() as tape:
                hidden = tf.tanh(inputs @ variables[0] + variables[1])
                outputs = hidden @ variables[2] + variables[3]
                loss = tf.reduce_mean(tf.square(outputs - targets))
            if session is not None:
                tape = bps.DistributedGradientTape(tape, session=session, **options)
            for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
                variable.assign_sub(LEARNING_RATE * gradient)

        for inputs, targets in batches:
            step(tf.constant(inputs), tf.constant(targets))
        return [variable.numpy() for variable in variables]

    def unsendable(self) -> Mapping[str, tuple[object, type[Exception], str]]:
        return {
            "list": ([object()], TypeError, "list"),
            "complex": (tf.zeros(2, tf.complex64), ValueError, "complex"),
            "text": (tf.constant("text"), ValueError, "string cannot be reduced"),
            "sparse": (tf.sparse.eye(3), ValueError, "to_dense"),
            "ragged": (tf.ragged.constant([[1.0], [2.0, 3.0]]), ValueError, "to_tensor"),
        }
