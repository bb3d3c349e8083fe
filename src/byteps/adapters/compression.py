"""Compression of gradients for the wire: none, or a cast of floating-point tensors to 16 bits.

An adapter says how its framework casts; a user's own class with the same two static methods may be passed
wherever one of these may.
"""

from __future__ import annotations

from typing import Any


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
        dtype: What is sent; one of the framework's dtypes of 16 bits.
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
