"""Compression of gradients for the wire, of MXNet arrays: see ``adapters.compression``."""

from __future__ import annotations

from typing import Any

import numpy as np

from byteps.adapters.compression import Narrowing, NoneCompressor


class _Narrowing(Narrowing):
    @staticmethod
    def is_wide(tensor: Any) -> bool:
        """See ``Narrowing``."""
        return tensor.dtype in (np.float32, np.float64)

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        """See ``Narrowing``."""
        return tensor.astype(dtype)


class Compression:
    """The compressors that come with byteps."""

    none = NoneCompressor

    class fp16(_Narrowing):  # noqa: N801  (the name that scripts use)
        """Sends floating-point arrays as IEEE half precision: 11 significant bits, at most 65504."""

        dtype = np.float16
