"""Operations on tensors that gradients flow through, eagerly and in graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import tensorflow as tf

from byteps.adapters.calls import Call
from byteps.tensorflow.rounds import carry_out, dense


class Operation(Protocol):
    """What happens to tensors, and to the gradients of the results."""

    def start(self, tensors: Sequence[Any]) -> list[Any]:
        """The results, new tensors."""
        ...

    def gradients(self, upstream: Sequence[Any]) -> list[Any]:
        """The gradients of the tensors, given those of the results; differentiable too."""
        ...


def differentiable_group(operation: Operation, tensors: Sequence[Any]) -> list[Any]:
    """The operation's results, new tensors that gradients flow through."""

    @tf.custom_gradient
    def run(*contributions: Any) -> tuple[list[Any], Any]:
        def gradient(*upstream: Any) -> list[Any]:
            return operation.gradients([tf.convert_to_tensor(one) for one in upstream])

        return operation.start(contributions), gradient

    return list(run(*tensors))


def differentiable(call: Call, tensor: Any) -> Any:
    """The call's result, which gradients flow through."""
    return differentiable_group(Reduction([call]), [tensor])[0]


def once(ephemeral: bool) -> bool:
    """Whether a gradient's name is used once: a graph made of an eager call's gradient may run more often."""
    return ephemeral and tf.executing_eagerly()


class Reduction:
    """Rounds of dense tensors that are all in flight together.

    Args:
        calls: One for each tensor.
    """

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = calls

    def start(self, tensors: Sequence[Any]) -> list[Any]:
        """See ``Operation``."""
        items = [dense(call, tensor) for call, tensor in zip(self._calls, tensors, strict=True)]
        return [result for (result,) in carry_out(items)]

    def gradients(self, upstream: Sequence[Any]) -> list[Any]:
        """See ``Operation``."""
        calls = [replace(call.of_gradient(), ephemeral=once(call.ephemeral)) for call in self._calls]
        found = differentiable_group(Reduction(calls), upstream)
        pairs = zip(self._calls, found, strict=True)
        return [back if call.sends else tf.zeros_like(back) for call, back in pairs]
