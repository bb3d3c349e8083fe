"""Tensors in flight: their memory, and how results reach the tensors that are to hold them."""

from __future__ import annotations

from typing import TypeAlias

import msgspec
import torch
from torch import Tensor

from byteps.adapters.handles import ResultHandle
from byteps.adapters.later import Later
from byteps.session import Buffer

TensorHandle: TypeAlias = ResultHandle[Tensor]
"""Of an operation whose result is one tensor."""


class Pending(msgspec.Struct):
    """A tensor that is on its way.

    Attributes:
        transfer: Its round.
        target: What will hold the result; None if this rank wants none.
        received: Where the bytes arrive if that is not ``target`` itself.
    """

    transfer: Later[object]
    target: Tensor | None
    received: Tensor | None = None

    def poll(self) -> bool:
        """Whether the result, or an error, is there."""
        return self.transfer.poll()

    def wait(self) -> None:
        """See ``finish``."""
        self.finish()

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


def buffer(tensor: Tensor) -> Buffer:
    """A contiguous CPU tensor's memory; it keeps the tensor alive."""
    return Buffer(tensor.data_ptr(), tensor.nbytes, tensor)
