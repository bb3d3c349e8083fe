"""What Horovod keeps under ``functions``: variables and objects that become the root's."""

from __future__ import annotations

from byteps.tensorflow.functions.objects import allgather_object, broadcast_object, broadcast_object_fn
from byteps.tensorflow.functions.variables import (
    BroadcastGlobalVariablesHook,
    broadcast_,
    broadcast_global_variables,
    broadcast_variables,
)

__all__ = [
    "BroadcastGlobalVariablesHook",
    "allgather_object",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
]
