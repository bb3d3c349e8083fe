"""Operations on one tensor, or on several together, as differentiable functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from byteps.torch.handles import ResultHandle, TensorHandle


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
