"""``CrossBarrier``: steps that do not wait for the gradients of all layers.

``optimizer`` is what users hold, ``barrier`` what is left of a step's barrier: see ``dependency_proxy`` for
who waits, and ``partial_steps`` for what updates what has arrived.
"""

from __future__ import annotations

from byteps.torch.cross_barrier.optimizer import CrossBarrier

__all__ = ["CrossBarrier"]
