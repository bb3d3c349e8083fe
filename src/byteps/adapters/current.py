"""The current session: what ``init()`` makes and ``rank()``, ``size()`` and friends refer to.

This is the one piece of module-level state in byteps. All adapters share it.
"""

from __future__ import annotations

import atexit
import logging
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast

from byteps.communicator import Engine
from byteps.config import Config, resolve
from byteps.errors import NotInitialized
from byteps.logs import set_up_logging
from byteps.session import Session

if TYPE_CHECKING:
    from byteps.communicator.node_collectives import NodeEngine

Discover = Callable[[Config], "tuple[Config, Callable[[], None]]"]
"""Completes settings from what a launcher offers; the second value undoes it at shutdown."""

KeptT = TypeVar("KeptT")

_current: Session | None = None
_kept: dict[object, object] = {}


def init(
    discover: Discover | None = None,
    engine: Engine | None = None,
    node_engine: NodeEngine | None = None,
    /,
    **settings: object,
) -> Session:
    """Join the job. Does nothing if this process has joined already.

    Args:
        discover: finds the job where no coordinator is set but a launcher is known.
        engine: makes the framework's collectives, for ``communicator = allreduce``.
        node_engine: the same within nodes, for ``node_collectives``.
        settings: fields of ``Config``; they win over the environment.

    Raises:
        ConfigError, JoinError, HandshakeError: why this process cannot be a member.
    """
    from byteps.joining import connect  # much to import, and only needed here

    global _current
    if _current is not None:
        return _current
    resolved = resolve(settings)
    set_up_logging(resolved.config)
    for warning in resolved.warnings:
        logging.getLogger("byteps").warning(warning)
    config, undo, coordinator = resolved.config, None, "the coordinator"
    if discover is not None and config.launcher == "torchrun" and not config.coordinator:
        config, undo = discover(config)
        coordinator = "the coordinator, a child process of rank 0"
    try:
        session = connect(config, coordinator=coordinator, engine=engine, node_engine=node_engine)
    except BaseException:
        if undo is not None:
            undo()
        raise
    if undo is not None:
        session.on_shutdown.append(undo)
    _current = session
    atexit.register(_end_with_process)
    return session


def shutdown() -> None:
    """Leave the job. Does nothing before ``init()``; ``init()`` may be called again afterwards."""
    global _current
    session, _current = _current, None
    _kept.clear()
    if session is not None:
        atexit.unregister(_end_with_process)
        session.shutdown()


def _end_with_process() -> None:
    if _current is not None:
        # The interpreter sets this when it has shown the exception that ends the process.
        _current.end_with_process(failed=getattr(sys, "last_value", None) is not None)


def current() -> Session:
    """The session of this process.

    Raises:
        NotInitialized: ``init()`` was not called, or ``shutdown()`` was.
    """
    if _current is None:
        raise NotInitialized
    return _current


def kept(make: Callable[[Session], KeptT]) -> KeptT:
    """What an adapter keeps while the current session lasts: made at first use, by ``make(session)``.

    Raises:
        NotInitialized: There is no session.
    """
    if make not in _kept:
        _kept[make] = make(current())
    return cast(KeptT, _kept[make])


def is_initialized() -> bool:
    """Whether this process has joined a job."""
    return _current is not None
