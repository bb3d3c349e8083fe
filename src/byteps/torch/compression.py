"""Compression of gradients for the wire, of torch tensors: see ``adapters.compression``."""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

from byteps.adapters import compression
from byteps.adapters.compression import Narrowing, NoneCompressor

Compressor: TypeAlias = compression.Compressor[Tensor]
"""What ``compression=`` arguments take."""


class _Narrowing(Narrowing):
    @staticmethod
    def is_wide(tensor: Tensor) -> bool:
        """See ``Narrowing``."""
        return tensor.dtype.is_floating_point and tensor.dtype.itemsize > 2

    @staticmethod
    def cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """See ``Narrowing``."""
        return tensor.to(dtype)


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
