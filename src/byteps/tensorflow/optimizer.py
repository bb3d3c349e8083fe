"""``DistributedOptimizer``: Keras's optimizers, or those of TensorFlow 1, on reduced gradients."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from byteps.adapters.gradients import check_foreign, checked_passes, gradient_rounds
from byteps.adapters.optimizer_class import distribute, sharing
from byteps.adapters.reductions import Average
from byteps.dtypes import ReduceOp
from byteps.session import Session
from byteps.tensorflow.compression import Compression
from byteps.tensorflow.gradients import GradientReducer


def DistributedOptimizer(  # noqa: N802  (the name that scripts use)
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: object = None,
    process_set: object = None,
    scale_local_gradients: bool = True,
    *,
    session: Session | None = None,
) -> Any:
    """Wrap an optimizer so that it steps on gradients that are reduced over all ranks.

    The result is an instance of the optimizer's class and shares all attributes with it.

    Args:
        optimizer: A ``tf.keras`` optimizer, or one of ``tf.compat.v1.train``.
        name, use_locking, device_dense, device_sparse, average_aggregated_gradients, scale_local_gradients:
            Accepted for Horovod scripts; mean nothing.
        compression: One of ``Compression``, or a class like them.
        sparse_as_dense: Make ``IndexedSlices`` dense; else their rows are joined.
        backward_passes_per_step: Must be 1.
        op: ``Average`` or ``Sum``.
        gradient_predivide_factor: Divides before the sum and multiplies after it; only with ``Average``.
        num_groups, groups: Accepted for Horovod scripts; servers reduce each gradient by itself.
        process_set: Must be None.
        session: The session of ``init()`` if not given.

    Raises:
        TypeError: ``optimizer`` is of neither kind.
        ValueError: It is distributed already, or an argument cannot work.
        NotInitialized: ``init()`` has not been called.
    """
    if checked_passes(backward_passes_per_step) > 1:
        raise ValueError(
            "backward_passes_per_step is not supported here: make the optimizer with "
            "gradient_accumulation_steps=, as tf.keras.optimizers do it themselves"
        )
    check_foreign(num_groups, groups, process_set)
    rounds = gradient_rounds(op, gradient_predivide_factor, session)
    reducer = GradientReducer(rounds, compression, sparse_as_dense)
    if isinstance(optimizer, tf.keras.optimizers.Optimizer):
        return distribute(optimizer, reducer.reduce)
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

    return sharing(optimizer, {"compute_gradients": compute_gradients})
