"""``horovod.torch.functions``: objects are pickled, as Horovod scripts expect; they trust their own ranks."""

from __future__ import annotations

from typing import Any

from byteps.adapters.process_sets import ProcessSet
from byteps.torch import functions
from byteps.torch.functions import broadcast_optimizer_state as broadcast_optimizer_state
from byteps.torch.functions import broadcast_parameters as broadcast_parameters


def broadcast_object(
    obj: object, root_rank: int = 0, name: str | None = None, process_set: ProcessSet | None = None
) -> Any:
    """Return the root's object, anything that pickle can do, on every rank; see ``byteps.torch``."""
    return functions.broadcast_object(obj, root_rank, name, process_set, allow_pickle=True)


def allgather_object(obj: object, name: str | None = None) -> list[Any]:
    """Return every rank's object on every rank, in the order of the ranks; see ``byteps.torch``."""
    return functions.allgather_object(obj, name, allow_pickle=True)
