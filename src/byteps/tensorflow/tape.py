"""``DistributedGradientTape``: a tape whose gradients are reduced over all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from byteps.adapters.gradients import check_foreign, gradient_rounds
from byteps.adapters.optimizer_class import sharing
from byteps.adapters.reductions import Average
from byteps.dtypes import ReduceOp
from byteps.session import Session
from byteps.tensorflow.compression import Compression
from byteps.tensorflow.gradients import GradientReducer


def DistributedGradientTape(  # noqa: N802  (the name that scripts use)
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: object = None,
    process_set: object = None,
    scale_local_gradients: bool = True,
    *,
    session: Session | None = None,
) -> Any:
    """Make a tape whose ``gradient()`` is reduced over all ranks.

    The result is of a class derived from the tape's own and shares all attributes with it. In a
    ``tf.function`` gradients are sent while the backward pass still runs; eagerly they are sent together
    once it has ended. The first source is the most urgent: give variables in forward order.

    Args:
        gradtape: A ``tf.GradientTape``.
        device_dense, device_sparse, scale_local_gradients: Accepted for Horovod scripts; mean nothing.
        compression: One of ``Compression``, or a class like them.
        sparse_as_dense: Make ``IndexedSlices`` dense; else their rows are joined.
        op: ``Average`` or ``Sum``.
        gradient_predivide_factor: Divides before the sum and multiplies after it; only with ``Average``.
        num_groups, groups: Accepted for Horovod scripts; servers reduce each gradient by itself.
        process_set: Must be None.
        session: The session of ``init()`` if not given.

    Raises:
        TypeError: ``gradtape`` is no tape.
        ValueError: An argument cannot work.
        NotInitialized: ``init()`` has not been called.
    """
    if not isinstance(gradtape, tf.GradientTape):
        raise TypeError(f"expected a tf.GradientTape, got {type(gradtape).__name__}")
    check_foreign(num_groups, groups, process_set)
    rounds = gradient_rounds(op, gradient_predivide_factor, session)
    reducer = GradientReducer(rounds, compression, sparse_as_dense)
    return sharing(gradtape, {"gradient": _gradient(type(gradtape), reducer)})


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
