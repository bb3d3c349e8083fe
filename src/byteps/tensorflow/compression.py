"""Compression of gradients for the wire, of TensorFlow tensors: see ``adapters.compression``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from byteps.adapters.compression import Narrowing, NoneCompressor


class _Narrowing(Narrowing):
    @staticmethod
    def is_wide(tensor: Any) -> bool:
        """See ``Narrowing``."""
        return bool(tensor.dtype.is_floating) and tensor.dtype.size > 2

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        """See ``Narrowing``."""
        return tf.cast(tensor, dtype)


class FP16Compressor(_Narrowing):
    """Sends floating-point tensors as IEEE half precision: 11 significant bits, at most 65504."""

    dtype = tf.float16


class BF16Compressor(_Narrowing):
    """Sends floating-point tensors as bfloat16: 8 significant bits, the range of float32."""

    dtype = tf.bfloat16


def compressed(
    compression: Any, tensors: Sequence[Any], reduce: Callable[[list[Any]], list[Any]]
) -> list[Any]:
    """Reduce tensors as they travel, and give the results back as the tensors were.

    Args:
        compression: One of ``Compression``, or a class like them.
        tensors: What is reduced.
        reduce: Reduces what travels.
    """
    packed = [compression.compress(tensor) for tensor in tensors]
    results = reduce([wire for wire, _ in packed])
    return [compression.decompress(one, context) for one, (_, context) in zip(results, packed, strict=True)]


class Compression:
    """The compressors that come with byteps."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
