"""Compression of gradients for the wire, of tensors of any Keras backend: see ``adapters.compression``."""

from __future__ import annotations

from typing import Any

import keras

from byteps.adapters.compression import Narrowing, NoneCompressor


class _Narrowing(Narrowing):
    @staticmethod
    def is_wide(tensor: Any) -> bool:
        """See ``Narrowing``."""
        return keras.backend.standardize_dtype(tensor.dtype) in ("float32", "float64")

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        """See ``Narrowing``."""
        return keras.ops.cast(tensor, dtype)


class FP16Compressor(_Narrowing):
    """Sends floating-point tensors as IEEE half precision: 11 significant bits, at most 65504."""

    dtype = "float16"


class BF16Compressor(_Narrowing):
    """Sends floating-point tensors as bfloat16: 8 significant bits, the range of float32."""

    dtype = "bfloat16"


class Compression:
    """The compressors that come with byteps."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
