"""Compression of gradients for the wire: none, or a cast of floating-point tensors to 16 bits.

An adapter says how its framework casts, unless that is NumPy's way; a user's own class with the same two
static methods may be passed wherever one of these may.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

TensorT = TypeVar("TensorT")


class Compressor(Protocol[TensorT]):
    """What ``compression=`` arguments take."""

    @staticmethod
    def compress(tensor: TensorT) -> tuple[TensorT, Any]:
        """What to send for ``tensor``, and a context that ``decompress`` needs."""
        ...

    @staticmethod
    def decompress(tensor: TensorT, ctx: Any) -> TensorT:
        """The opposite: same shape and dtype as what was compressed."""
        ...


class NoneCompressor:
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, None]:
        """The tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: None) -> Any:
        """The tensor itself."""
        return tensor


class Narrowing:
    """Casts what is floating-point and wider than 16 bits. Adapters derive theirs from it.

    Attributes:
        dtype: What is sent: one of the framework's dtypes of 16 bits.
    """

    dtype: Any

    @staticmethod
    def is_wide(tensor: Any) -> bool:
        """Whether a tensor's elements are floating-point numbers of more than 16 bits."""
        raise NotImplementedError

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        """The tensor in another dtype."""
        raise NotImplementedError

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """The tensor in 16 bits if it is float32 or float64; the context is the dtype it had."""
        return cls.cast(tensor, cls.dtype) if cls.is_wide(tensor) else tensor, tensor.dtype

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:
        """The tensor in the dtype it had."""
        return cls.cast(tensor, ctx)


class ArrayNarrowing(Narrowing):
    """``Narrowing`` of arrays that have NumPy's dtypes and cast by ``astype``."""

    @staticmethod
    def is_wide(tensor: Any) -> bool:
        """See ``Narrowing``."""
        return tensor.dtype in (np.float32, np.float64)

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        """See ``Narrowing``."""
        return tensor.astype(dtype)


class FP16:
    """Sends floating-point tensors as IEEE half precision: 11 significant bits, at most 65504.

    To be derived from before ``Narrowing``, where a framework takes dtypes by name.
    """

    dtype = "float16"


class BF16:
    """Sends floating-point tensors as bfloat16: 8 significant bits, the range of float32. As ``FP16``."""

    dtype = "bfloat16"


class FP16Arrays(FP16, ArrayNarrowing):
    """``FP16`` for arrays."""


def compressed(
    compression: Any, tensors: Sequence[Any], reduce: Callable[[list[Any]], list[Any]]
) -> list[Any]:
    """Reduce tensors as they travel, and give the results back as the tensors were.

    Args:
        compression: One of an adapter's ``Compression``, or a class like them.
        tensors: What is reduced.
        reduce: Reduces what travels.
    """
    packed = [compression.compress(tensor) for tensor in tensors]
    results = reduce([wire for wire, _ in packed])
    return [compression.decompress(one, context) for one, (_, context) in zip(results, packed, strict=True)]
