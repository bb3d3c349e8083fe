"""Joining a job: from settings to a ``Session``."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from byteps import _native
from byteps.communicator import Alone, Communicator, Engine
from byteps.communicator.parameter_server import ParameterServer
from byteps.config import Config
from byteps.control import ControlClient, Relay
from byteps.diagnostics import DumpOnSignal
from byteps.dialing import open_beacon, open_control
from byteps.errors import ConfigError, JoinError
from byteps.neighbours import Entrance
from byteps.security import warn_of_open_token
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
    from byteps.communicator.node_collectives import NodeEngine

_log = logging.getLogger("byteps.session")

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
    node_engine: NodeEngine | None = None,
) -> Session:
    """Join the job that the settings describe. Without a coordinator and other workers, a job of one.

    Args:
        config: the settings.
        linker: makes what opens the links to the servers.
        coordinator: how errors call the coordinator.
        engine: makes the collectives for ``communicator = allreduce``.
        node_engine: makes those for ``node_collectives``; without one, nothing is summed by them.

    Raises:
        JoinError, HandshakeError, ConfigError: why this process cannot be a member.
    """
    warn_of_open_token(config)
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
        engines = engine, node_engine
        session = _join(config, linker, coordinator, engines) if config.coordinator else _alone(config)
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
    engines: tuple[Engine | None, NodeEngine | None],
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
        meet: Callable[[], None] | None = None
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
            communicator, meet = _communicator(config, control, worker, welcome, trace, engines)
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
    if meet is not None:
        _meet(session, control, meet)
    return session


def _communicator(
    config: Config,
    control: ControlClient,
    worker: _native.Worker,
    welcome: Welcome,
    trace: Trace,
    engines: tuple[Engine | None, NodeEngine | None],
) -> tuple[Communicator, Callable[[], None] | None]:
    """What carries out the rounds; and what has its engine find those of the other ranks, if it has one.

    Modules that most jobs do not need are imported only where they are used.
    """
    engine, node_engine = engines
    if uses_collectives(config):
        from byteps.communicator.all_reduce import AllReduce

        assert engine is not None
        all_reduce = AllReduce(control, welcome, config, worker.close, trace)
        return all_reduce, partial(all_reduce.start, engine)
    servers = ParameterServer(control, worker, welcome, credit_of(config), trace)
    if node_engine is None or config.node_collectives == "off":
        return servers, None
    if not welcome.nodes:
        if welcome.rank == 0:
            _log.warning("node_collectives has no effect: no two ranks share a node (hierarchy.md)")
        return servers, None
    from byteps.communicator.node_first import NodeFirst

    first = NodeFirst(control, servers, welcome, config)
    return first, partial(first.start, node_engine)


def _meet(session: Session, control: ControlClient, meet: Callable[[], None]) -> None:
    """Have the engines of all ranks find each other; who cannot is no member."""
    try:
        with control.blaming_the_lost():
            meet()
    except BaseException:
        session.end_with_process(failed=True)
        control.close()
        raise


def _welcome_alone(config: Config) -> Welcome:
    return Welcome(
        rank=0, size=1, local_rank=0, local_size=1, epoch=0, servers=[], settings=settings_of(config)
    )
