"""``DistributedOptimizer``: Keras's optimizers, or those of TensorFlow 1, on reduced gradients."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from byteps.adapters.gradients import gradient_reducer
from byteps.adapters.optimizer_class import distribute, sharing
from byteps.tensorflow.gradients import GradientReducer


def DistributedOptimizer(  # noqa: N802  (the name that scripts use)
    optimizer: Any, name: str | None = None, **options: Any
) -> Any:
    """Wrap an optimizer so that it steps on gradients that are reduced over all ranks.

    What ``byteps.keras.DistributedOptimizer`` says of its arguments, result and errors holds here, too.

    Args:
        optimizer: A ``tf.keras`` optimizer, or one of ``tf.compat.v1.train``.
        name, options: As there.
    """
    reducer = gradient_reducer(GradientReducer, **options)
    if isinstance(optimizer, tf.keras.optimizers.Optimizer):
        return distribute(optimizer, reducer.reduce, reducer.keep_local)
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return _version_1(optimizer, reducer)
    raise TypeError(
        f"expected an optimizer of tf.keras.optimizers or tf.compat.v1.train, got {type(optimizer).__name__}"
    )


def _version_1(optimizer: Any, reducer: GradientReducer) -> Any:
    plain = type(optimizer)

    def compute_gradients(self: Any, *args: Any, **options: Any) -> list[tuple[Any, Any]]:
        """See ``tf.compat.v1.train.Optimizer``; the gradients are reduced over all ranks."""
        pairs = plain.compute_gradients(self, *args, **options)
        gradients, variables = zip(*pairs, strict=True)
        return list(zip(reducer.reduce(gradients, variables), variables, strict=True))

    def register_local_var(self: Any, var: Any) -> None:
        """The gradient of this variable stays local."""
        reducer.keep_local(var)

    members = {"compute_gradients": compute_gradients, "register_local_var": register_local_var}
    return sharing(optimizer, members)
