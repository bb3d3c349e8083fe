"""Joining a job: from settings to a ``Session``."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from byteps import _native
from byteps.communicator import Alone, Communicator, Engine, ParameterServer
from byteps.config import Config
from byteps.control import ControlClient, Relay
from byteps.diagnostics import DumpOnSignal
from byteps.dialing import open_beacon, open_control
from byteps.errors import ConfigError, JoinError
from byteps.neighbours import Entrance
from byteps.session import Session
from byteps.trace import Trace, open_trace
from byteps.wire import Welcome
from byteps.worker import (
    Linker,
    SocketLinker,
    credit_of,
    join_message,
    refuse_encryption,
    refuse_tuning,
    settings_of,
    start_data_plane,
    uses_collectives,
)

if TYPE_CHECKING:
    from byteps.communicator.all_reduce import AllReduce

InheritedT = TypeVar("InheritedT")


def _in_forked_children(action: Callable[[InheritedT], None]) -> Callable[[InheritedT], None]:
    """Make of a function one that has it called in forked children, with its argument if that lives still.

    What is registered for forks stays so for good: so this is done once, and not for each argument.
    """
    inherited: weakref.WeakSet[InheritedT] = weakref.WeakSet()

    def forked() -> None:
        for one in inherited:
            action(one)

    os.register_at_fork(after_in_child=forked)
    return inherited.add


@_in_forked_children
def _drop_in_forks(inherited: Session | DumpOnSignal) -> None:
    """A forked child lets go of its copy."""
    inherited.abandon()


def connect(
    config: Config,
    linker: Callable[[Config, Welcome], Linker] = SocketLinker,
    coordinator: str = "the coordinator",
    engine: Engine | None = None,
) -> Session:
    """Join the job that the settings describe. Without a coordinator and other workers, a job of one.

    Args:
        config: the settings.
        linker: makes what opens the links to the servers.
        coordinator: how errors call the coordinator.
        engine: makes the collectives for ``communicator = allreduce``.

    Raises:
        JoinError, HandshakeError, ConfigError: why this process cannot be a member.
    """
    refuse_encryption(config)
    refuse_tuning(config, config.size if config.coordinator else max(config.size, 1))
    if uses_collectives(config) and engine is None:
        raise ConfigError(
            "communicator = allreduce needs a framework's collectives; use byteps.torch, or unset "
            "BYTEPS_COMMUNICATOR"
        )
    if config.size > 1 and not config.coordinator:
        raise JoinError(
            f"this is one of {config.size} workers, but no coordinator is known; start the job with "
            f"`byteps run` or torchrun, or set BYTEPS_COORDINATOR to its host:port"
        )
    found: list[weakref.ref[Session]] = []
    dump = DumpOnSignal("worker", lambda: _report(found))
    try:
        session = _join(config, linker, coordinator, engine) if config.coordinator else _alone(config)
    except BaseException:
        dump.close()
        raise
    found.append(weakref.ref(session))
    session.on_shutdown.append(dump.close)
    _drop_in_forks(dump)
    _drop_in_forks(session)
    return session


def _report(found: Sequence[weakref.ref[Session]]) -> list[str]:
    session = found[0]() if found else None
    return ["it is joining a job that is not complete yet"] if session is None else session.report()


def _alone(config: Config) -> Session:
    return Session(config, _welcome_alone(config), Alone(), None)


def _join(
    config: Config,
    linker: Callable[[Config, Welcome], Linker],
    coordinator: str,
    engine: Engine | None,
) -> Session:
    relay = Relay()
    control = ControlClient(relay.on_notice, relay.on_closed, coordinator=coordinator)
    open_control(config, control, "worker")
    trace = Trace()
    entrance = None
    try:
        entrance = None if uses_collectives(config) else Entrance.open(config)
        welcome = control.join(join_message(config, entrance), config.join_timeout_s)
        refuse_tuning(config, welcome.size)
        communicator: Communicator = Alone()
        all_reduce: AllReduce | None = None
        if welcome.size > 1 or config.force_distributed:
            trace = open_trace(config, "worker", welcome.rank, welcome.size)
            with control.blaming_the_lost():
                worker = start_data_plane(
                    config,
                    welcome,
                    linker(config, welcome),
                    lambda: _native.socket_link(open_beacon(config, "worker", welcome)),
                    trace.capacity,
                    entrance,
                )
            if uses_collectives(config):
                from byteps.communicator.all_reduce import AllReduce  # others need not wait for it

                communicator = all_reduce = AllReduce(control, welcome, config, worker.close, trace)
            else:
                communicator = ParameterServer(control, worker, welcome, credit_of(config), trace)
            trace.start(worker.take_events, control.wall_clock_s)
    except BaseException:
        trace.close()
        control.close()
        raise
    finally:
        if entrance is not None:
            entrance.close()
    session = Session(config, welcome, communicator, control, trace)
    relay.attach(session)
    if all_reduce is not None and engine is not None:
        _meet(session, control, all_reduce, engine)
    return session


def _meet(session: Session, control: ControlClient, communicator: AllReduce, engine: Engine) -> None:
    """Have the engines of all ranks find each other; who cannot is no member."""
    try:
        with control.blaming_the_lost():
            communicator.start(engine)
    except BaseException:
        session.end_with_process(failed=True)
        control.close()
        raise


def _welcome_alone(config: Config) -> Welcome:
    return Welcome(
        rank=0, size=1, local_rank=0, local_size=1, epoch=0, servers=[], settings=settings_of(config)
    )
