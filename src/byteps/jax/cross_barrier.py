"""``CrossBarrier`` is not there, and says why."""

from __future__ import annotations

from typing import NoReturn


def CrossBarrier(*arguments: object, **options: object) -> NoReturn:  # noqa: N802  (the name that scripts use)
    """Raises NotImplementedError: a compiled step ends when all of its results are there.

    Args:
        arguments, options: What other adapters take.
    """
    raise NotImplementedError(
        "byteps.jax cannot cross the barrier: a step that JAX has compiled ends when all of its results are "
        "there, and JAX arrays cannot be updated where they are read. Use push_pull_gradients()"
    )
