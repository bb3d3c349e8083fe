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


class _Narrowing:
    """Casts what is floating-point and wider than 16 bits."""

    dtype: torch.dtype

    @classmethod
    def compress(cls, tensor: Tensor) -> tuple[Tensor, torch.dtype]:
        """The tensor in 16 bits if it is float32 or float64; the context is the dtype it had."""
        narrows = tensor.dtype.is_floating_point and tensor.dtype.itemsize > cls.dtype.itemsize
        return tensor.to(cls.dtype) if narrows else tensor, tensor.dtype

    @staticmethod
    def decompress(tensor: Tensor, ctx: torch.dtype) -> Tensor:
        """The tensor in the dtype it had."""
        return tensor.to(ctx)


class FP16Compressor(_Narrowing):
    """Sends floating-point tensors as IEEE half precision: 11 significant bits, at most 65504."""

    dtype = torch.float16


class BF16Compressor(_Narrowing):
    """Sends floating-point tensors as bfloat16: 8 significant bits, the range of float32."""

    dtype = torch.bfloat16


class Compression:
    """The compressors that come with byteps."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


BUILT_IN = frozenset({NoneCompressor, FP16Compressor, BF16Compressor})
"""Compressors whose output has the tensor's shape and a dtype that depends on the tensor's dtype only."""
