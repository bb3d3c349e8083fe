"""How a tensor's bytes reach the session and come back.

A contiguous CPU tensor is sent from and received into its own memory. Others go through a copy: strided and
negated views through a contiguous one, CUDA tensors through pinned memory (``staging``) unless the node's
ranks sum on their GPUs first: then who sums says what it needs (``communicator.node_collectives``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from byteps.session import Buffer, Session
from byteps.torch.transfers import Pending, buffer
from byteps.wire import TensorSpec

if TYPE_CHECKING:
    from byteps.communicator.node_collectives import NodeCollectives
    from byteps.torch.staging import Stager


class Stagers:
    """One stager for each GPU, made when it is first needed."""

    def __init__(self) -> None:
        self._stagers: dict[torch.device, Stager] = {}

    def of(self, tensor: Tensor) -> Stager | None:
        """What copies a CUDA tensor while the backward pass goes on; None for other tensors."""
        if not tensor.is_cuda:
            return None
        from byteps.torch.staging import Stager  # only where there is CUDA

        if tensor.device not in self._stagers:
            self._stagers[tensor.device] = Stager(tensor.device)
        return self._stagers[tensor.device]


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
    if source is not None and source is target and not source.is_cuda and _is_direct(source):
        memory = Buffer(source.data_ptr(), source.nbytes, source)  # as most gradients: quickly
        return Pending(session.submit(spec, memory, memory, priority=priority), target)
    given = source if source is not None else target
    memory_of: Callable[[Tensor], Buffer] = buffer
    sums = None
    if given is not None and given.is_cuda:
        sums = _device_engine(session, spec)
        if sums is None:
            from byteps.torch import staging  # only where there is CUDA

            return staging.start(session, spec, source, target, priority, stager)
        memory_of = partial(sums.lend, name=spec.name)
    sent = source if source is None or _is_direct(source) else _contiguous(source)
    received = sent
    if target is not None and target is not source:
        received = target if _is_direct(target) else torch.empty_like(target, memory_format=_CONTIGUOUS)
    elif target is None:
        received = None
    elif received is not source:
        _check_writable(target, spec.name)
    outgoing = None if sent is None else memory_of(sent)
    incoming = outgoing if received is sent else None if received is None else memory_of(received)
    transfer = session.submit(spec, outgoing, incoming, priority=priority)
    return Pending(
        transfer if sums is None else sums.follow(transfer, incoming),
        target,
        None if received is target else received,
    )


_CONTIGUOUS = torch.contiguous_format


def _device_engine(session: Session, spec: TensorSpec) -> NodeCollectives | None:
    from byteps.communicator.node_first import NodeFirst  # only where there is CUDA

    first = session.communicator
    return first.device_engine(spec) if isinstance(first, NodeFirst) else None


def _is_direct(tensor: Tensor) -> bool:
    """Whether the tensor's memory holds its elements in order, as they are."""
    return tensor.is_contiguous() and not tensor.is_neg()


def _contiguous(tensor: Tensor) -> Tensor:
    return tensor.detach().resolve_neg().contiguous()


def _check_writable(tensor: Tensor, name: str) -> None:
    strides: Sequence[int] = tensor.stride()
    if any(step == 0 and extent > 1 for step, extent in zip(strides, tensor.shape, strict=True)):
        raise ValueError(f"{name}: an expanded tensor cannot hold a result. Send tensor.clone()")
