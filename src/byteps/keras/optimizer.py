"""``DistributedOptimizer`` for Keras 3 over TensorFlow, torch or JAX, and models that are loaded with one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from byteps.adapters.gradients import (
    GradientReducer,
    check_foreign,
    checked_passes,
    gradient_rounds,
)
from byteps.adapters.optimizer_class import distribute, is_distributed
from byteps.adapters.reductions import Average
from byteps.dtypes import ReduceOp
from byteps.keras.compression import Compression
from byteps.session import Session


def DistributedOptimizer(  # noqa: N802  (the name that scripts use)
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: ReduceOp = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: object = None,
    process_set: object = None,
    scale_local_gradients: bool = True,
    *,
    session: Session | None = None,
) -> Any:
    """Wrap an optimizer so that it steps on gradients that are reduced over all ranks.

    The result is an instance of the optimizer's class, has its configuration, and shares all attributes with
    it; a model that is saved with it loads without byteps too. Gradients are reduced before Keras clips them.

    Args:
        optimizer: A Keras optimizer.
        name, device_dense, device_sparse, average_aggregated_gradients, scale_local_gradients: Accepted for
            Horovod scripts; mean nothing.
        compression: One of ``Compression``, or a class like them.
        sparse_as_dense: Make ``tf.IndexedSlices`` dense; else their rows are joined.
        gradient_predivide_factor: Divides before the sum and multiplies after it; only with ``Average``.
        op: ``Average`` or ``Sum``.
        backward_passes_per_step: Must be 1.
        num_groups, groups: Accepted for Horovod scripts; servers reduce each gradient by itself.
        process_set: Must be None.
        session: The session of ``init()`` if not given.

    Raises:
        TypeError: ``optimizer`` is no Keras optimizer.
        ValueError: It is distributed already, or an argument cannot work.
        NotInitialized: ``init()`` has not been called.
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(f"expected a keras.optimizers.Optimizer, got {type(optimizer).__name__}")
    if checked_passes(backward_passes_per_step) > 1:
        raise ValueError(
            "backward_passes_per_step is not supported here: make the optimizer with "
            "gradient_accumulation_steps=, as keras.optimizers do it themselves"
        )
    check_foreign(num_groups, groups, process_set)
    rounds = gradient_rounds(op, gradient_predivide_factor, session)
    return distribute(optimizer, _reducer_class()(rounds, compression, sparse_as_dense).reduce)


def _reducer_class() -> type[GradientReducer]:
    """What reduces the gradients of the backend in use: imported only for it, as it imports the framework."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        from byteps.tensorflow import gradients as of_tensorflow

        return of_tensorflow.GradientReducer
    if backend == "torch":
        from byteps.torch import gradient_lists as of_torch

        return of_torch.GradientReducer
    if backend == "jax":
        from byteps.jax import gradients as of_jax

        return of_jax.GradientReducer
    raise ValueError(
        f"Keras's backend {backend!r} cannot train over byteps: set KERAS_BACKEND to tensorflow, torch or jax"
    )


def load_model(
    filepath: str | Path,
    custom_optimizers: Sequence[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """Load a model that ``model.save`` has written; its optimizer, with its state, becomes a distributed one.

    Args:
        filepath: The file.
        custom_optimizers: Optimizer classes of your own, found by their names.
        custom_objects: Other objects by the names that the file has for them.
        compression: As for ``DistributedOptimizer``.
        legacy_opts: Accepted for Horovod scripts; means nothing.

    Raises:
        ValueError: Keras cannot load the file.
        NotInitialized: ``init()`` has not been called.
    """
    known = {kind.__name__: kind for kind in custom_optimizers or ()}
    model = keras.models.load_model(filepath, custom_objects={**known, **(custom_objects or {})})
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and not is_distributed(optimizer):
        model.optimizer = DistributedOptimizer(optimizer, compression=compression)
    return model
