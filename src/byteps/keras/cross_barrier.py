"""``CrossBarrier`` is not there, and says why."""

from __future__ import annotations

from typing import NoReturn


def CrossBarrier(*arguments: object, **options: object) -> NoReturn:  # noqa: N802  (the name that scripts use)
    """Raises NotImplementedError: ``fit`` updates all variables within a step.

    Args:
        arguments, options: What other adapters take.
    """
    raise NotImplementedError(
        "byteps.keras cannot cross the barrier: fit() ends each step by an update of all variables, and "
        "nothing may wait where it reads them. Use DistributedOptimizer, or a training loop of your own: "
        "byteps.tensorflow.CrossBarrier, byteps.torch.CrossBarrier"
    )
