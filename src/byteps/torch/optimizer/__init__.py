"""``DistributedOptimizer``, under the module path that scripts import it from."""

from __future__ import annotations

from byteps.torch.optimizer.synchronized import DistributedOptimizer

__all__ = ["DistributedOptimizer"]
