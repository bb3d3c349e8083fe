"""``DistributedOptimizer`` for Keras 3 over TensorFlow, torch or JAX, and models that are loaded with one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from byteps.adapters.gradients import GradientReducer, gradient_reducer, variables_of
from byteps.adapters.optimizer_class import distribute, is_distributed
from byteps.keras.compression import Compression


def DistributedOptimizer(  # noqa: N802  (the name that scripts use)
    optimizer: Any, name: str | None = None, **options: Any
) -> Any:
    """Wrap an optimizer so that it steps on gradients that are reduced over all ranks.

    The result is an instance of the optimizer's class, has its configuration, and shares all attributes with
    it; a model that is saved with it loads without byteps too. Gradients are reduced before Keras clips them.
    After ``register_local_var(variable)`` the gradient of that variable stays local.

    Args:
        optimizer: A Keras optimizer.
        name: Accepted for Horovod scripts; means nothing.
        options: ``compression``, ``sparse_as_dense``, ``op``, ``gradient_predivide_factor``, ``session`` and
            others of ``adapters.gradients.gradient_reducer``.

    Raises:
        TypeError: ``optimizer`` is no Keras optimizer, or there is no such option.
        ValueError: It is distributed already, or an option cannot work.
        NotInitialized: ``init()`` has not been called.
    """
    return PartialDistributedOptimizer(optimizer, name, **options)


def PartialDistributedOptimizer(  # noqa: N802  (the name that scripts use)
    optimizer: Any, name: str | None = None, *, local_layers: Any = None, **options: Any
) -> Any:
    """``DistributedOptimizer`` for models that ranks share but for some layers.

    Args:
        optimizer, name, options: As for ``DistributedOptimizer``.
        local_layers: A Keras layer that is built, or a list of them, whose gradients stay local, divided by
            the number of ranks unless ``scale_local_gradients`` is False.
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(f"expected a keras.optimizers.Optimizer, got {type(optimizer).__name__}")
    reducer = gradient_reducer(_reducer_class(), **options)
    for variable in variables_of(local_layers):
        reducer.keep_local(variable)
    return distribute(optimizer, reducer.reduce, reducer.keep_local)


def _reducer_class() -> type[GradientReducer]:
    """What reduces the gradients of the backend in use: imported only for it, as it imports the framework."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        from byteps.tensorflow import gradients as of_tensorflow

        return of_tensorflow.GradientReducer
    if backend == "torch":
        from byteps.torch.reductions import lists as of_torch

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
