"""Tensors as buffers: which can be sent, and how their bytes reach the session and come back.

A contiguous CPU tensor is sent from and received into its own memory. Others go through a copy: strided and
negated views through a contiguous one, CUDA tensors through pinned memory (``staging``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from byteps.dtypes import DType, ReduceOp
from byteps.session import Buffer, Session
from byteps.wire import TensorSpec

if TYPE_CHECKING:
    from byteps.torch.staging import Stager

ELEMENT_TYPES = MappingProxyType(
    {
        torch.float64: DType.FLOAT64,
        torch.float32: DType.FLOAT32,
        torch.float16: DType.FLOAT16,
        torch.bfloat16: DType.BFLOAT16,
        torch.int8: DType.INT8,
        torch.uint8: DType.UINT8,
        torch.int16: DType.INT16,
        torch.int32: DType.INT32,
        torch.int64: DType.INT64,
        torch.bool: DType.BOOL,
    }
)


def element_type(tensor: object, name: str) -> DType:
    """The wire's dtype of a tensor that can be sent.

    Args:
        tensor: What the caller gave.
        name: Named in errors.

    Raises:
        TypeError: It is no tensor.
        ValueError: It is sparse, complex, of another dtype that servers cannot reduce, or on a device that is
            neither CPU nor CUDA.
    """
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name}: expected a torch.Tensor, got {type(tensor).__name__}")
    if tensor.layout != torch.strided:
        raise ValueError(
            f"{name}: sparse tensors ({tensor.layout}) cannot be sent. Send tensor.to_dense(); for gradients "
            "pass sparse_as_dense=True to DistributedOptimizer"
        )
    if tensor.is_complex():
        raise ValueError(f"{name}: complex tensors cannot be sent. Send torch.view_as_real(tensor)")
    if tensor.dtype not in ELEMENT_TYPES:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in ELEMENT_TYPES)
        raise ValueError(f"{name}: {tensor.dtype} cannot be reduced. Cast it to one of {known}")
    if tensor.device.type not in ("cpu", "cuda"):
        raise ValueError(f"{name}: tensors on {tensor.device} cannot be sent. Send tensor.cpu()")
    return ELEMENT_TYPES[tensor.dtype]


def spec_of(
    tensor: Tensor,
    name: str,
    op: ReduceOp,
    *,
    scales: tuple[float, float] = (1.0, 1.0),
    root: int = -1,
    ephemeral: bool = False,
) -> TensorSpec:
    """What this rank declares for a tensor.

    Args:
        tensor: What is to be sent.
        name: Its name on the wire.
        op: How it is reduced.
        scales: Factors for each contribution and for the result.
        root: The one rank that contributes, for a broadcast.
        ephemeral: Whether the name is used only once.

    Raises:
        ValueError, TypeError: The tensor cannot be sent, or its dtype has no average.
    """
    dtype = element_type(tensor, name)
    if dtype is DType.BOOL and op is ReduceOp.AVERAGE:
        raise ValueError(f"{name}: booleans have no average. Pass op=Sum (any), op=Min (all) or op=Max (any)")
    return TensorSpec(name, dtype, tuple(tensor.shape), op, *scales, root=root, ephemeral=ephemeral)


class Transfer(Protocol):
    """A round of one tensor: what the session and the staging of CUDA tensors return."""

    def poll(self) -> bool:
        """Whether the result, or an error, is there."""
        ...

    def wait(self) -> None:
        """Wait for the result. Raises what went wrong."""
        ...


@dataclass(slots=True)
class Pending:
    """A tensor that is on its way.

    Attributes:
        transfer: Its round.
        target: What will hold the result; None if this rank wants none.
        received: Where the bytes arrive if that is not ``target`` itself.
    """

    transfer: Transfer
    target: Tensor | None
    received: Tensor | None = None

    def finish(self) -> None:
        """Wait until ``target`` holds the result.

        Raises:
            BytePSError: The round failed.
        """
        self.transfer.wait()
        if self.target is None:
            return
        if self.received is None:
            # The bytes came in behind autograd's back: let it notice that saved values are gone.
            torch.autograd.graph.increment_version(self.target)
        else:
            with torch.no_grad():
                self.target.copy_(self.received, non_blocking=True)


def start(
    session: Session,
    spec: TensorSpec,
    source: Tensor | None,
    target: Tensor | None,
    priority: int = 0,
    stager: Stager | None = None,
) -> Pending:
    """Submit a tensor.

    Args:
        session: Where to.
        spec: Its declaration.
        source: What this rank contributes; None for nothing.
        target: What is to hold the result, ``source`` itself or another tensor of its shape and dtype; None
            if this rank wants no result.
        priority: Higher numbers are sent first.
        stager: Copies CUDA tensors without blocking the caller; without one, the caller waits for the copy.

    Returns:
        The pending result. The tensors are kept alive, and must be left alone, until ``finish()``.

    Raises:
        DuplicateNameError: A tensor of this name is in flight.
        DeclarationError: The name stands for another shape, dtype or op.
    """
    given = source if source is not None else target
    if given is not None and given.is_cuda:
        from byteps.torch import staging  # only where there is CUDA

        return staging.start(session, spec, source, target, priority, stager)
    sent = None if source is None else _contiguous(source)
    received = sent
    if target is not None and target is not source:
        received = target if _is_direct(target) else torch.empty_like(target, memory_format=_CONTIGUOUS)
    elif target is None:
        received = None
    elif received is not source:
        _check_writable(target, spec.name)
    buffers = [None if tensor is None else buffer(tensor) for tensor in (sent, received)]
    transfer = session.submit(spec, buffers[0], buffers[1], priority=priority)
    return Pending(transfer, target, None if received is target else received)


_CONTIGUOUS = torch.contiguous_format


def _is_direct(tensor: Tensor) -> bool:
    """Whether the tensor's memory holds its elements in order, as they are."""
    return tensor.is_contiguous() and not tensor.is_neg()


def _contiguous(tensor: Tensor) -> Tensor:
    return tensor if _is_direct(tensor) else tensor.detach().resolve_neg().contiguous()


def _check_writable(tensor: Tensor, name: str) -> None:
    strides: Sequence[int] = tensor.stride()
    if any(step == 0 and extent > 1 for step, extent in zip(strides, tensor.shape, strict=True)):
        raise ValueError(f"{name}: an expanded tensor cannot hold a result. Send tensor.clone()")


def buffer(tensor: Tensor) -> Buffer:
    """A contiguous CPU tensor's memory; it keeps the tensor alive."""
    return Buffer(tensor.data_ptr(), tensor.nbytes, tensor)
