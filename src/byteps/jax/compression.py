"""Compression of gradients for the wire, of JAX arrays: see ``adapters.compression``."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from byteps.adapters.compression import Narrowing, NoneCompressor


class _Narrowing(Narrowing):
    @staticmethod
    def is_wide(tensor: Any) -> bool:
        """See ``Narrowing``."""
        return jnp.issubdtype(tensor.dtype, jnp.floating) and tensor.dtype.itemsize > 2

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        """See ``Narrowing``."""
        return tensor.astype(dtype)


class Compression:
    """The compressors that come with byteps."""

    none = NoneCompressor

    class fp16(_Narrowing):  # noqa: N801  (the name that scripts use)
        """Sends floating-point arrays as IEEE half precision: 11 significant bits, at most 65504."""

        dtype = jnp.float16

    class bf16(_Narrowing):  # noqa: N801  (the name that scripts use)
        """Sends floating-point arrays as bfloat16: 8 significant bits, the range of float32."""

        dtype = jnp.bfloat16
