"""``horovod.tensorflow.functions``: objects are pickled, as Horovod scripts expect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from byteps.tensorflow import functions
from byteps.tensorflow.functions import broadcast_ as broadcast_
from byteps.tensorflow.functions import broadcast_global_variables as broadcast_global_variables
from byteps.tensorflow.functions import broadcast_variables as broadcast_variables


def broadcast_object(*arguments: Any, **options: Any) -> Any:
    """Return the root's object, anything that pickle can do, on every rank; see ``byteps.tensorflow``."""
    return functions.broadcast_object(*arguments, **options, allow_pickle=True)


def broadcast_object_fn(*arguments: Any, **options: Any) -> Callable[[object], Any]:
    """A function of the object that does what ``broadcast_object`` does with these arguments."""
    return functions.broadcast_object_fn(*arguments, **options, allow_pickle=True)


def allgather_object(*arguments: Any, **options: Any) -> list[Any]:
    """Return every rank's object on every rank, in the order of the ranks; see ``byteps.tensorflow``."""
    return functions.allgather_object(*arguments, **options, allow_pickle=True)
