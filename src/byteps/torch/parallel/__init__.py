"""Modules whose gradients are averages after ``backward()``: ours, and torch's own by a ``comm_hook``."""

from __future__ import annotations

from byteps.torch.parallel.data_parallel import DistributedDataParallel

__all__ = ["DistributedDataParallel"]
