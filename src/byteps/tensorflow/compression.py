"""Compression of gradients for the wire, of TensorFlow tensors: see ``adapters.compression``."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from byteps.adapters.compression import BF16, FP16, Narrowing, NoneCompressor


class _Narrowing(Narrowing):
    @staticmethod
    def is_wide(tensor: Any) -> bool:
        """See ``Narrowing``."""
        return bool(tensor.dtype.is_floating) and tensor.dtype.size > 2

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        """See ``Narrowing``."""
        return tf.cast(tensor, dtype)


class FP16Compressor(FP16, _Narrowing):
    """``FP16`` for tensors."""


class BF16Compressor(BF16, _Narrowing):
    """``BF16`` for tensors."""


class Compression:
    """The compressors that come with byteps."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
