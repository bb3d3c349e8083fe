"""One push_pull with its arguments resolved, in place or out of place."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from byteps.adapters.calls import Call
from byteps.adapters.handles import ResultHandle
from byteps.torch.compression import Compression, Compressor
from byteps.torch.differentiable import differentiable
from byteps.torch.sending import start
from byteps.torch.tensors import element_type
from byteps.torch.transfers import Pending, TensorHandle
from byteps.wire import TensorSpec


@dataclass(frozen=True, slots=True)
class Reduction(Call):
    """What to do with one tensor.

    Attributes:
        compression: Applied before sending and after receiving.
    """

    compression: type[Compressor] = Compression.none

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
        return differentiable(gradient, self.of_gradient())

    def declaration(self, tensor: Tensor) -> TensorSpec:
        """What to declare for a tensor as it travels."""
        return self.spec(element_type(tensor, self.name), tensor.shape)

    def _start(self, tensor: Tensor, target: Tensor) -> Pending:
        return start(self.session, self.declaration(tensor), tensor, target, self.priority)
