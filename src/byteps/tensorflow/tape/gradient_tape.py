"""``DistributedGradientTape``: a tape whose gradients are reduced over all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from byteps.adapters.gradients import gradient_reducer, variables_of
from byteps.adapters.optimizer_class import sharing
from byteps.tensorflow.gradients import GradientReducer


def DistributedGradientTape(gradtape: Any, **options: Any) -> Any:  # noqa: N802  (the name that scripts use)
    """Make a tape whose ``gradient()`` is reduced over all ranks.

    The result is of a class derived from the tape's own and shares all attributes with it. In a
    ``tf.function`` gradients are sent while the backward pass still runs; eagerly they are sent together
    once it has ended. The first source is the most urgent: give variables in forward order. After
    ``register_local_source(variable)`` the gradient of that variable stays local.

    Args:
        gradtape: A ``tf.GradientTape``.
        options: ``compression``, ``sparse_as_dense``, ``op``, ``gradient_predivide_factor``, ``session`` and
            others of ``adapters.gradients.gradient_reducer``.

    Raises:
        TypeError: ``gradtape`` is no tape, or there is no such option.
        ValueError: An option cannot work.
        NotInitialized: ``init()`` has not been called.
    """
    if not isinstance(gradtape, tf.GradientTape):
        raise TypeError(f"expected a tf.GradientTape, got {type(gradtape).__name__}")
    return PartialDistributedGradientTape(gradtape, **options)


def PartialDistributedGradientTape(  # noqa: N802  (the name that scripts use)
    gradtape: Any, *, local_layers: Any = None, **options: Any
) -> Any:
    """``DistributedGradientTape`` for models that ranks share but for some layers.

    Args:
        gradtape, options: As for ``DistributedGradientTape``.
        local_layers: A Keras layer, or a list of them, whose gradients stay local, divided by the number of
            ranks unless ``scale_local_gradients`` is False.
    """
    reducer = gradient_reducer(GradientReducer, **options)
    for variable in variables_of(local_layers):
        reducer.keep_local(variable)

    def register_local_source(self: Any, source: Any) -> None:
        """The gradient of this source stays local."""
        reducer.keep_local(source)

    members = {"gradient": _gradient(type(gradtape), reducer), "register_local_source": register_local_source}
    return sharing(gradtape, members)


def _gradient(plain: Any, reducer: GradientReducer) -> Callable[..., Any]:
    def gradient(
        self: Any,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
        **options: Any,
    ) -> Any:
        """See ``tf.GradientTape``; the result is reduced over all ranks.

        Args:
            self: The tape.
            target, sources, output_gradients: As for the plain tape.
            use_generic_names: Accepted for Horovod scripts; means nothing.
            options: As for the plain tape.
        """
        found = plain.gradient(self, target, sources, output_gradients, **options)
        variables = tf.nest.flatten(sources)
        gradients = reducer.reduce(tf.nest.flatten(found), variables)
        return tf.nest.pack_sequence_as(sources, gradients)

    return gradient
