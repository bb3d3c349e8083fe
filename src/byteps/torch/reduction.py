"""One push_pull with its arguments resolved: in place, out of place, differentiable."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from byteps.adapters.current import current
from byteps.adapters.reductions import Average, Sum, resolve_op, wire_name
from byteps.dtypes import ReduceOp
from byteps.session import Session
from byteps.torch.compression import Compression, Compressor
from byteps.torch.handles import TensorHandle
from byteps.torch.tensors import Pending, spec_of, start


@dataclass(frozen=True, slots=True)
class Reduction:
    """What to do with one tensor.

    Attributes:
        session: Where to send it.
        name: Its name on the wire.
        op: How to reduce it.
        scales: Factors for each contribution and for the result.
        priority: Higher numbers are sent first.
        ephemeral: Whether the name is used only once.
    """

    session: Session
    name: str
    op: ReduceOp
    scales: tuple[float, float] = (1.0, 1.0)
    priority: int = 0
    ephemeral: bool = False

    def in_place(self, tensor: Tensor) -> TensorHandle:
        """Submit a tensor that is to hold the result."""
        return TensorHandle(self.name, self._start(tensor, tensor), lambda: tensor)

    def out_of_place(self, tensor: Tensor) -> TensorHandle:
        """Submit a tensor whose result is to be a new one."""
        with torch.no_grad():
            output = torch.empty_like(tensor, memory_format=torch.contiguous_format)
        return TensorHandle(self.name, self._start(tensor, output), lambda: output)

    def differentiable(self, tensor: Tensor, compression: type[Compressor] = Compression.none) -> Tensor:
        """The result as a new tensor that gradients flow through."""
        wire, context = compression.compress(tensor)
        reduced: Tensor = _PushPull.apply(wire, self)  # type: ignore[no-untyped-call]
        return compression.decompress(reduced, context)

    def _start(self, tensor: Tensor, target: Tensor) -> Pending:
        spec = spec_of(tensor, self.name, self.op, scales=self.scales, ephemeral=self.ephemeral)
        return start(self.session, spec, tensor, target, self.priority)


class _PushPull(torch.autograd.Function):
    """The gradient of a push_pull is the push_pull of the gradient, with the same op and factors."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, reduction: Reduction) -> Tensor:
        ctx.reduction = reduction
        return reduction.out_of_place(tensor).synchronize()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        reduction: Reduction = ctx.reduction
        if reduction.op not in (Average, Sum):
            raise ValueError(
                f"{reduction.name}: {reduction.op.name.title()} has no gradient here: detach() its input"
            )
        backward = replace(reduction, name=f"{reduction.name}.gradient")
        return backward.differentiable(gradients[0]), None


def reduction_of(
    tensor: Tensor,
    average: bool | None,
    op: ReduceOp | None,
    name: str | None,
    *,
    priority: int | None = None,
    scales: tuple[float, float] = (1.0, 1.0),
    session: Session | None = None,
) -> Reduction:
    """Resolve a call's arguments. A wrong call takes no number from those of the unnamed tensors.

    Raises:
        ValueError, TypeError: An argument is wrong.
        NotInitialized: There is no session.
    """
    resolved = resolve_op(average, op)
    spec_of(tensor, "push_pull" if name is None else repr(name), resolved)
    if priority is not None and not isinstance(priority, int):
        raise TypeError(f"priority= must be an integer or None, not {priority!r}")
    session = current() if session is None else session
    full_name, ephemeral = wire_name(session, "push_pull", name)
    return Reduction(session, full_name, resolved, scales, priority or 0, ephemeral)
