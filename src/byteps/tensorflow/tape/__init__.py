"""``DistributedGradientTape``: for training loops that are written out, with any optimizer."""

from __future__ import annotations

from byteps.tensorflow.tape.gradient_tape import DistributedGradientTape, PartialDistributedGradientTape

__all__ = ["DistributedGradientTape", "PartialDistributedGradientTape"]
