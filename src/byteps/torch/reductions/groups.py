"""Operations on several tensors together as differentiable functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from byteps.adapters.handles import ResultHandle


class GroupOperation(Protocol):
    """What happens to several tensors, and to the gradients of their results."""

    def start(self, tensors: Sequence[Tensor]) -> ResultHandle[list[Tensor]]:
        """Start the operation; its results are new tensors."""
        ...

    def gradients(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """The gradients of the tensors, given those of the results."""
        ...


class _GroupFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, operation: GroupOperation, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.operation = operation
        return tuple(operation.start(tensors).synchronize())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        operation: GroupOperation = ctx.operation
        return None, *operation.gradients(gradients)


def differentiable_group(tensors: Sequence[Tensor], operation: GroupOperation) -> list[Tensor]:
    """The operation's results, new tensors that gradients flow through."""
    return list(_GroupFunction.apply(operation, *tensors))  # type: ignore[no-untyped-call]
