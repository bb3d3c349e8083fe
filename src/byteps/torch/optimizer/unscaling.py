"""Whether a ``GradScaler`` has unscaled an optimizer's gradients already.

``unscale_`` writes to gradients without raising their version, so who sends them cannot see it.
"""

from __future__ import annotations

from types import FrameType
from typing import Any

from torch.amp import GradScaler

UNSCALED = (
    "the gradients were unscaled before they were reduced over all ranks, so each rank has looked for "
    "infinities in its own alone. Call synchronize() on the distributed optimizer before "
    "scaler.unscale_(optimizer), then scaler.step(optimizer) within `with optimizer.skip_synchronize():`"
)


def has_unscaled(caller: FrameType | None, optimizer: object) -> bool:
    """Whether a method of a ``GradScaler`` runs that has unscaled the optimizer's gradients since its update.

    Args:
        caller: The frame of what may be such a method: the scaler does not say who it is.
        optimizer: What was given to the scaler.
    """
    scaler: Any = None if caller is None else caller.f_locals.get("self")
    if not isinstance(scaler, GradScaler):
        return False
    state = getattr(scaler, "_per_optimizer_states", {}).get(id(optimizer), {})
    return getattr(state.get("stage"), "name", "") == "UNSCALED"
