"""``CrossBarrier``: steps that do not wait for the gradients of all layers.

``single_updates`` runs an optimizer on one variable at a time.
"""

from __future__ import annotations

from byteps.tensorflow.cross_barrier.optimizer import CrossBarrier

__all__ = ["CrossBarrier"]
