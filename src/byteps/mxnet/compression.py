"""Compression of gradients for the wire, of MXNet arrays: see ``adapters.compression``."""

from __future__ import annotations

from byteps.adapters.compression import FP16Arrays, NoneCompressor


class Compression:
    """The compressors that come with byteps."""

    none = NoneCompressor
    fp16 = FP16Arrays
