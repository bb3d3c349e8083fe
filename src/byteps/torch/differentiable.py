"""Operations on one tensor as differentiable functions."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from byteps.torch.transfers import TensorHandle


class Operation(Protocol):
    """What happens to a tensor, and to the gradient of its result."""

    def out_of_place(self, tensor: Tensor) -> TensorHandle:
        """Start the operation; its result is a new tensor."""
        ...

    def gradient(self, gradient: Tensor) -> Tensor:
        """The gradient of the tensor, given that of the result; differentiable too."""
        ...


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, operation: Operation) -> Tensor:
        ctx.operation = operation
        return operation.out_of_place(tensor).synchronize()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        operation: Operation = ctx.operation
        return operation.gradient(gradients[0]), None


def differentiable(tensor: Tensor, operation: Operation) -> Tensor:
    """The operation's result, a new tensor that gradients flow through."""
    result: Tensor = _Function.apply(tensor, operation)  # type: ignore[no-untyped-call]
    return result
