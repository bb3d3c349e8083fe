"""Lists of JAX gradients, reduced over all ranks within ``jit`` or outside.

Compiled code calls back twice for each gradient, to start its round and to wait. JAX runs ordered callbacks
in the order in which they are traced: starts last layer first, as the backward pass computes, then the waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback

from byteps.adapters import gradients as shared
from byteps.adapters.arrays import ArrayRound, Rounds
from byteps.adapters.calls import Call


class GradientReducer(shared.GradientReducer):
    """See ``adapters.gradients``."""

    def carry_out(self, calls: Sequence[Call], gradients: Sequence[Any]) -> list[Any]:
        """See ``adapters.gradients``."""
        rounds = Rounds()
        pairs = [*zip(calls, gradients, strict=True)]
        numbers = [_start(rounds, call, gradient) for call, gradient in reversed(pairs)][::-1]
        return [_wait(rounds, number, like) for number, like in zip(numbers, gradients, strict=True)]


def _start(rounds: Rounds, call: Call, gradient: Any) -> Any:
    def start(array: Any) -> Any:
        return np.int32(rounds.add(ArrayRound(call, np.asarray(array))))

    return io_callback(start, jax.ShapeDtypeStruct((), np.int32), gradient, ordered=True)


def _wait(rounds: Rounds, number: Any, like: Any) -> Any:
    def wait(number: Any) -> Any:
        return rounds.wait(int(number))[0]

    return io_callback(wait, jax.ShapeDtypeStruct(like.shape, like.dtype), number, ordered=True)
