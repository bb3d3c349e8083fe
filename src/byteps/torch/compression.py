"""Compression of gradients for the wire: none, or a cast of floating-point tensors to 16 bits.

A user's own class with the same two static methods may be passed wherever one of these may.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor


class Compressor(Protocol):
    """What ``compression=`` arguments take."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, Any]:
        """What to send for ``tensor``, and a context that ``decompress`` needs."""
        ...

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:
        """The opposite: same shape and dtype as what was compressed."""
        ...


class NoneCompressor:
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, None]:
        """The tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Tensor, ctx: None) -> Tensor:
        """The tensor itself."""
        return tensor


def _narrow(tensor: Tensor, dtype: torch.dtype) -> tuple[Tensor, torch.dtype]:
    """Cast what is wider than 16 bits and floating-point; the context is the dtype it had."""
    narrows = tensor.dtype.is_floating_point and tensor.dtype.itemsize > dtype.itemsize
    return tensor.to(dtype) if narrows else tensor, tensor.dtype


class FP16Compressor:
    """Sends floating-point tensors as IEEE half precision: 11 significant bits, at most 65504."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, torch.dtype]:
        """The tensor as float16 if it is float32 or float64."""
        return _narrow(tensor, torch.float16)

    @staticmethod
    def decompress(tensor: Tensor, ctx: torch.dtype) -> Tensor:
        """The tensor in the dtype it had."""
        return tensor.to(ctx)


class BF16Compressor:
    """Sends floating-point tensors as bfloat16: 8 significant bits, the range of float32."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, torch.dtype]:
        """The tensor as bfloat16 if it is float32 or float64."""
        return _narrow(tensor, torch.bfloat16)

    @staticmethod
    def decompress(tensor: Tensor, ctx: torch.dtype) -> Tensor:
        """The tensor in the dtype it had."""
        return tensor.to(ctx)


class Compression:
    """The compressors that come with byteps."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


BUILT_IN = frozenset({NoneCompressor, FP16Compressor, BF16Compressor})
"""Compressors whose output has the tensor's shape and a dtype that depends on the tensor's dtype only."""
