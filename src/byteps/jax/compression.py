"""Compression of gradients for the wire, of JAX arrays: see ``adapters.compression``."""

from __future__ import annotations

from byteps.adapters.compression import BF16, ArrayNarrowing, FP16Arrays, NoneCompressor


class BF16Arrays(BF16, ArrayNarrowing):
    """``BF16`` for arrays."""


class Compression:
    """The compressors that come with byteps."""

    none = NoneCompressor
    fp16 = FP16Arrays
    bf16 = BF16Arrays
