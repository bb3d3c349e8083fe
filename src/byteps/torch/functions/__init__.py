"""What Horovod keeps under ``functions``: one rank's tensors, optimizer state and objects on all ranks."""

from __future__ import annotations

from byteps.torch.functions.optimizer_state import broadcast_optimizer_state
from byteps.torch.functions.parameters import allgather_object, broadcast_object, broadcast_parameters

__all__ = ["allgather_object", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters"]
