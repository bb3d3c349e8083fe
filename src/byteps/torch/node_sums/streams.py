"""Where sums within a node are computed: on streams beside the training program's, or by the caller."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from byteps.adapters.later import Later
from byteps.session import Buffer


@dataclass(slots=True)
class DeviceMemory:
    """A contiguous tensor on a GPU as it is submitted: the ``owner`` of its ``Buffer``.

    Attributes:
        flat: Its elements.
        ready: When the program's own stream has come to where it was submitted.
        written: When the result is in it; None: not begun yet, or none comes.
    """

    flat: Tensor
    ready: torch.cuda.Event
    written: torch.cuda.Event | None = None


def device_buffer(tensor: Tensor) -> Buffer:
    """A contiguous CUDA tensor's memory; it keeps the tensor alive."""
    ready = torch.cuda.current_stream(tensor.device).record_event()
    return Buffer(tensor.data_ptr(), tensor.nbytes, DeviceMemory(tensor.detach().view(-1), ready))


@dataclass(slots=True)
class OnDevice:
    """A round whose result is written on a GPU. Who waits makes the current stream wait, not the processor.

    Attributes:
        transfer: The round: over when all its work has been given to the GPU.
        target: Where the result goes.
    """

    transfer: Later[object]
    target: Buffer | None

    def poll(self) -> bool:
        """See ``Later``."""
        return self.transfer.poll()

    def wait(self) -> None:
        """See ``Later``."""
        self.transfer.wait()
        memory = None if self.target is None else self.target.owner
        if isinstance(memory, DeviceMemory) and memory.written is not None:
            torch.cuda.current_stream(memory.flat.device).wait_event(memory.written)


class Streams(Protocol):
    """Where collectives and the copies before and after them run. Only the node's loop calls these.

    Attributes:
        device: Whose memory they work on.
    """

    device: torch.device

    def collectives(self) -> AbstractContextManager[object]:
        """What is done within belongs to the stream of the collectives."""

    def begin(self, memory: object) -> None:
        """That stream is about to use the memory that ``Buffer.owner`` stands for."""

    def written(self, memory: object) -> None:
        """That stream has been given all that changes the memory."""

    def to_host(self, share: Tensor) -> tuple[Tensor, Callable[[], None]]:
        """A share, as that stream leaves it, in host memory, and what waits for it on another thread."""

    def to_device(self, host: Tensor) -> Tensor:
        """What is in host memory now, for that stream."""

    def drain(self) -> None:
        """Wait until all that was begun is over."""


class HostStreams:
    """See ``Streams``. Host memory: nothing runs beside."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")

    def collectives(self) -> AbstractContextManager[object]:
        """See ``Streams``."""
        return nullcontext()

    def begin(self, memory: object) -> None:
        """See ``Streams``."""

    def written(self, memory: object) -> None:
        """See ``Streams``."""

    def to_host(self, share: Tensor) -> tuple[Tensor, Callable[[], None]]:
        """See ``Streams``."""
        return share, lambda: None

    def to_device(self, host: Tensor) -> Tensor:
        """See ``Streams``."""
        return host

    def drain(self) -> None:
        """See ``Streams``."""


class CudaStreams:
    """See ``Streams``. Three of them, so that copies there and back go on beside the collectives.

    Args:
        device: The rank's GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._sums, self._out, self._back = (torch.cuda.Stream(device) for _ in range(3))

    def collectives(self) -> AbstractContextManager[object]:
        """See ``Streams``."""
        return torch.cuda.stream(self._sums)

    def begin(self, memory: object) -> None:
        """See ``Streams``."""
        if isinstance(memory, DeviceMemory):
            self._sums.wait_event(memory.ready)
            memory.flat.record_stream(self._sums)

    def written(self, memory: object) -> None:
        """See ``Streams``."""
        if isinstance(memory, DeviceMemory):
            memory.written = self._sums.record_event()

    def to_host(self, share: Tensor) -> tuple[Tensor, Callable[[], None]]:
        """See ``Streams``."""
        self._out.wait_stream(self._sums)
        with torch.cuda.stream(self._out):
            host = torch.empty(share.shape, dtype=share.dtype, pin_memory=True)
            host.copy_(share, non_blocking=True)
            share.record_stream(self._out)
            copied = torch.cuda.Event(blocking=True)
            copied.record(self._out)
        return host, copied.synchronize

    def to_device(self, host: Tensor) -> Tensor:
        """See ``Streams``."""
        with torch.cuda.stream(self._back):
            share = torch.empty(host.shape, dtype=host.dtype, device=self.device)
            share.copy_(host, non_blocking=True)
        self._sums.wait_stream(self._back)
        share.record_stream(self._sums)
        return share

    def drain(self) -> None:
        """See ``Streams``."""
        self._sums.synchronize()


def check_device(tensor_device: torch.device, own: str, name: str) -> None:
    """Refuse a tensor of another GPU than the one that this rank sums on.

    Raises:
        ValueError: It is one.
    """
    if str(tensor_device) != own:
        raise ValueError(
            f"{name}: the tensor is on {tensor_device}, but this rank sums on {own}, which was the current "
            f"device at init(). Call torch.cuda.set_device({tensor_device.index}) before init(), or move the "
            f"tensor to {own}"
        )
