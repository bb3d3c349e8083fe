"""Updates of one variable at a time by a Keras optimizer, some time after the step that they belong to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

_STEPS = 3


class SingleUpdates:
    """Has an optimizer update variables one by one, each with the step's number and learning rate.

    Args:
        optimizer: A Keras optimizer.
        variables: What it trains.

    Raises:
        TypeError: It is none.
        ValueError: It does not treat each variable by itself.
    """

    def __init__(self, optimizer: Any, variables: Sequence[Any]) -> None:
        if not isinstance(optimizer, tf.keras.optimizers.Optimizer):
            raise TypeError(f"expected a tf.keras optimizer, got {type(optimizer).__name__}")
        _check(optimizer)
        self.optimizer = optimizer
        self._variables = variables
        if not optimizer.built:
            optimizer.build(variables)
        self._number = tf.Variable(0, dtype=tf.int64, trainable=False, name="byteps_step")
        self._rate = tf.Variable(0.0, trainable=False, name="byteps_rate")

    def note_step(self) -> None:
        """A step has ended whose updates come later: with its number and its learning rate."""
        self._number.assign(tf.cast(self.optimizer.iterations.value, tf.int64))
        self._rate.assign(tf.cast(self.optimizer.learning_rate, tf.float32))
        self.optimizer.iterations.assign_add(1)

    def update(self, place: int, gradient: Any) -> Any:
        """Update the variable at a place; returns True, as a tensor."""
        with _rate_of(self.optimizer, self._rate):
            _update_one(self.optimizer, self._number, gradient, self._variables[place])
        return tf.constant(True)


class _rate_of:  # noqa: N801  (used like a function)
    """Within it the optimizer has another learning rate; a schedule follows the step's number by itself."""

    def __init__(self, optimizer: Any, rate: Any) -> None:
        self._optimizer, self._rate = optimizer, rate
        self._before: Any = None

    def __enter__(self) -> None:
        if isinstance(self._optimizer._learning_rate, tf.keras.Variable):
            self._before = tf.identity(self._optimizer._learning_rate.value)
            self._optimizer._learning_rate.assign(self._rate)

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            self._optimizer._learning_rate.assign(self._before)


def _update_one(optimizer: Any, number: Any, gradient: Any, variable: Any) -> None:
    optimizer.iterations.assign(tf.cast(number, optimizer.iterations.dtype))
    optimizer.apply([gradient], [variable])


def _check(optimizer: Any) -> None:
    """Raise ValueError unless variables that are updated one by one become what they become together."""
    name = type(optimizer).__name__
    if getattr(optimizer, "inner_optimizer", None) is not None:
        raise ValueError(f"CrossBarrier: {name} scales the loss, which needs all gradients before any update")
    for option in ("use_ema", "gradient_accumulation_steps", "global_clipnorm"):
        if getattr(optimizer, option, None):
            raise ValueError(
                f"CrossBarrier: {option}= needs all variables of a step together. Leave it out, or use "
                "DistributedGradientTape"
            )
    try:
        together = _tried(optimizer, lambda one, _, grads, kept: one.apply(grads, kept))
        single = _tried(optimizer, _one_by_one)
    except Exception as error:
        raise ValueError(f"CrossBarrier: a copy of {name} could not be tried out: {error}") from error
    if not all(np.array_equal(one, other) for one, other in zip(together, single, strict=True)):
        raise ValueError(
            f"CrossBarrier: {name} does not treat each variable by itself: updated one by one they become "
            "others. Use DistributedGradientTape"
        )


def _one_by_one(optimizer: Any, step: int, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
    for gradient, variable in zip(gradients, variables, strict=True):
        _update_one(optimizer, step, gradient, variable)


def _tried(optimizer: Any, step: Callable[[Any, int, Sequence[Any], Sequence[Any]], None]) -> list[Any]:
    """Small variables after a few steps of a copy of the optimizer."""
    with tf.init_scope():
        random = np.random.default_rng(0)
        copied = type(optimizer).from_config(optimizer.get_config())
        variables = [tf.keras.Variable(random.standard_normal((2, size))) for size in (2, 3)]
        copied.build(variables)
        for number in range(_STEPS):
            gradients = [tf.constant(random.standard_normal(one.shape), one.dtype) for one in variables]
            step(copied, number, gradients, variables)
        return [variable.numpy() for variable in variables]
