"""Lists of JAX gradients, reduced over all ranks within ``jit`` or outside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from byteps.adapters import gradients as shared
from byteps.adapters.calls import Call
from byteps.jax.rounds import carry_out


class GradientReducer(shared.GradientReducer):
    """See ``adapters.gradients``."""

    def carry_out(self, calls: Sequence[Call], gradients: Sequence[Any]) -> list[Any]:
        """See ``adapters.gradients``."""
        return carry_out(calls, gradients)
