"""CUDA tensors through pinned host memory, on a stream beside the one that computes.

Imported only once a CUDA tensor is sent. Host memory comes from torch's caching allocator for pinned memory,
so a training loop allocates nothing after its first step.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from byteps.session import Handle, Session
from byteps.torch.transfers import Pending, buffer
from byteps.wire import TensorSpec


class Stager:
    """Submits CUDA tensors once their copy to the host is done, without holding up the training thread.

    Args:
        device: The one GPU whose tensors it copies.
    """

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)
        self.executor = ThreadPoolExecutor(1, "byteps-staging")


class _StagedTransfer:
    """A round that begins when a copy to the host has ended."""

    def __init__(self, submitted: Future[Handle]) -> None:
        self._submitted = submitted

    def poll(self) -> bool:
        """Whether the result, or an error, is there."""
        if not self._submitted.done():
            return False
        return self._submitted.exception() is not None or self._submitted.result().poll()

    def wait(self) -> None:
        """Wait for the result. Raises what went wrong."""
        self._submitted.result().wait()


def start(
    session: Session,
    spec: TensorSpec,
    source: Tensor | None,
    target: Tensor | None,
    priority: int,
    stager: Stager | None,
) -> Pending:
    """Submit a CUDA tensor. Arguments and errors are those of ``tensors.start``."""
    given = source if source is not None else target
    assert given is not None
    host = torch.empty(given.shape, dtype=given.dtype, pin_memory=True)
    memory = buffer(host)
    sent, received = None if source is None else memory, None if target is None else memory

    def submit() -> Handle:
        return session.submit(spec, sent, received, priority=priority)

    if source is None:
        return Pending(submit(), target, host)
    if stager is None:
        host.copy_(source.detach())
        return Pending(submit(), target, host)
    copied = _copy_to_host(source, host, stager.stream)
    return Pending(_StagedTransfer(stager.executor.submit(_submit_after, copied, submit)), target, host)


def _copy_to_host(source: Tensor, host: Tensor, stream: torch.cuda.Stream) -> torch.cuda.Event:
    """Start the copy behind what the current stream has been given so far; the event says that it is done."""
    stream.wait_stream(torch.cuda.current_stream(source.device))
    with torch.cuda.stream(stream), torch.no_grad():
        host.copy_(source, non_blocking=True)
        source.record_stream(stream)
        copied = torch.cuda.Event()
        copied.record(stream)
    return copied


def _submit_after(copied: torch.cuda.Event, submit: Callable[[], Handle]) -> Handle:
    copied.synchronize()
    return submit()
