"""Python objects that become the root's, or go to all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from byteps.adapters.exchange import ObjectExchange, exchange_of
from byteps.adapters.process_sets import ProcessSet
from byteps.session import Session


def broadcast_object(
    obj: object,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet | None = None,
    *,
    allow_pickle: bool = False,
) -> Any:
    """``byteps.torch.broadcast_object`` with TensorFlow's arguments; send ``tensor.numpy()`` for tensors.

    Args:
        obj, root_rank, name, process_set, allow_pickle: As there, errors included.
        session: The byteps session, that of ``init()`` if not given. A TensorFlow 1 session, as Horovod
            scripts pass, is not needed and means nothing.
    """
    return _exchange(session, allow_pickle, process_set).broadcast(obj, root_rank, name)


def broadcast_object_fn(root_rank: int = 0, *arguments: Any, **options: Any) -> Callable[[object], Any]:
    """A function of the object that does what ``broadcast_object`` does with these arguments."""
    return lambda obj: broadcast_object(obj, root_rank, *arguments, **options)


def allgather_object(
    obj: object,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet | None = None,
    *,
    allow_pickle: bool = False,
) -> list[Any]:
    """Return every rank's object on every rank, in the order of the ranks; see ``broadcast_object``."""
    return _exchange(session, allow_pickle, process_set).allgather(obj, name)


def _exchange(session: Any, allow_pickle: bool, process_set: ProcessSet | None) -> ObjectExchange:
    return exchange_of(process_set, session if isinstance(session, Session) else None, allow_pickle)
