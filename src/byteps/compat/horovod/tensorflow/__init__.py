"""``horovod.tensorflow``: ``byteps.tensorflow``, with objects pickled as in Horovod."""

from __future__ import annotations

from byteps import tensorflow as _adapter
from byteps.compat.horovod.tensorflow.functions import allgather_object as allgather_object
from byteps.compat.horovod.tensorflow.functions import broadcast_object as broadcast_object
from byteps.compat.horovod.tensorflow.functions import broadcast_object_fn as broadcast_object_fn

__all__ = [*_adapter.__all__]


def __getattr__(name: str) -> object:
    """Everything else is the adapter's own."""
    return getattr(_adapter, name)
