"""``horovod.torch``: ``byteps.torch``, with objects pickled as in Horovod."""

from __future__ import annotations

from byteps import torch as _adapter
from byteps.compat.horovod.torch.functions import allgather_object as allgather_object
from byteps.compat.horovod.torch.functions import broadcast_object as broadcast_object

__all__ = [*_adapter.__all__]


def __getattr__(name: str) -> object:
    """Everything else is the adapter's own."""
    return getattr(_adapter, name)
