"""One push_pull with its arguments resolved, in place or out of place."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from byteps.adapters.process_sets import ProcessSet, group_of
from byteps.adapters.reductions import Average, Sum, resolve_op
from byteps.dtypes import ReduceOp
from byteps.session import Session
from byteps.torch.compression import Compression, Compressor
from byteps.torch.differentiable import differentiable
from byteps.torch.handles import ResultHandle, TensorHandle
from byteps.torch.sending import start
from byteps.torch.tensors import spec_of
from byteps.torch.transfers import Pending
from byteps.wire import TensorSpec


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
        compression: Applied before sending and after receiving.
        members: The ranks that take part; all if empty.
        context: What the tensor is part of.
    """

    session: Session
    name: str
    op: ReduceOp
    scales: tuple[float, float] = (1.0, 1.0)
    priority: int = 0
    ephemeral: bool = False
    compression: type[Compressor] = Compression.none
    members: tuple[int, ...] = ()
    context: str = ""

    def in_place(self, tensor: Tensor) -> TensorHandle:
        """Start to reduce a tensor that is to hold the result."""
        with torch.no_grad():
            wire, context = self.compression.compress(tensor)

        def result() -> Tensor:
            if wire is not tensor:
                with torch.no_grad():
                    tensor.copy_(self.compression.decompress(wire, context))
            return tensor

        return ResultHandle(self.name, self._start(wire, wire), result)

    def out_of_place(self, tensor: Tensor) -> TensorHandle:
        """Start to reduce a tensor whose result is to be a new one."""
        with torch.no_grad():
            wire, context = self.compression.compress(tensor)
            output = torch.empty_like(wire, memory_format=torch.contiguous_format)
        pending = self._start(wire, output)
        return ResultHandle(self.name, pending, lambda: self.compression.decompress(output, context))

    def gradient(self, gradient: Tensor) -> Tensor:
        """The gradient of a push_pull is the push_pull of the gradient, with the same op and factors."""
        if self.op not in (Average, Sum):
            raise ValueError(f"{self.name}: {self.op.name.title()} has no gradient here: detach() its input")
        return differentiable(gradient, replace(self, name=f"{self.name}.gradient"))

    def spec(self, tensor: Tensor) -> TensorSpec:
        """What to declare for a tensor as it travels."""
        return spec_of(
            tensor,
            self.name,
            self.op,
            scales=self.scales,
            ephemeral=self.ephemeral,
            members=self.members,
            context=self.context,
        )

    def _start(self, tensor: Tensor, target: Tensor) -> Pending:
        return start(self.session, self.spec(tensor), tensor, target, self.priority)


def reduction_of(
    tensor: Tensor,
    average: bool | None,
    op: ReduceOp | None,
    name: str | None,
    *,
    priority: int | None = None,
    scales: tuple[float, float] = (1.0, 1.0),
    compression: type[Compressor] = Compression.none,
    session: Session | None = None,
    process_set: ProcessSet | None = None,
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
    group = group_of(process_set, session)
    full_name, ephemeral = group.name("push_pull", name)
    return Reduction(
        group.session, full_name, resolved, scales, priority or 0, ephemeral, compression, group.members
    )
