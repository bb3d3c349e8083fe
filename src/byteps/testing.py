"""Whole jobs in one process: coordinator, servers and workers as objects, connected without sockets.

Ranks are threads. It is how byteps tests itself, and how programs that use byteps can be tested::

    with cluster(4, servers=2) as sessions:
        results = run_ranks(sessions, lambda session: train(session))
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from byteps import _native
from byteps.communicator import Communicator, Engine
from byteps.communicator.all_reduce import AllReduce
from byteps.communicator.in_process import InProcessGroup
from byteps.communicator.node_collectives import NodeEngine
from byteps.communicator.node_first import NodeFirst
from byteps.communicator.parameter_server import ParameterServer
from byteps.config import Config
from byteps.control import ControlClient, Relay
from byteps.coordinator.core import Coordinator, Outbox
from byteps.neighbours import Entrance
from byteps.server import Server
from byteps.session import Session
from byteps.trace import open_trace
from byteps.tuning.tuner import Try
from byteps.wire import AskClock, Clock, Join, Message
from byteps.worker import credit_of, join_message, start_data_plane, uses_collectives

Result = TypeVar("Result")

JOIN_TIMEOUT_S = 30.0


class _Hub:
    """Drives a coordinator for members of this process."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._queue: deque[Callable[[], Outbox]] = deque()
        self._clients: dict[int, ControlClient] = {}
        self._busy = False

    def drive(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    def later(self, work: Callable[[], Try], deliver: Callable[[Try], Outbox]) -> None:
        """The tuner's thread, which nobody waits for."""

        def run() -> None:
            result = work()
            self._handle(lambda: deliver(result))

        threading.Thread(target=run, name="byteps-tuner", daemon=True).start()

    def connect(self, client: ControlClient) -> None:
        with self._lock:
            member = len(self._clients)
            self._clients[member] = client
        client.attach(_InprocChannel(self, member))

    def post(self, member: int, message: Message | None) -> None:
        """A member says something, or (None) hangs up."""
        if isinstance(message, AskClock):  # as the coordinator's service does, whatever the core is at
            self._clients[member].deliver(Clock(message.request, time.time()))
            return
        core = self._coordinator
        if message is None:
            self._handle(lambda: core.disconnected(member, "connection closed"))
        else:
            self._handle(lambda: core.received(member, message))

    def _handle(self, event: Callable[[], Outbox]) -> None:
        with self._lock:
            self._queue.append(event)
            if self._busy:  # a call from within deliver: the outer call goes on with it
                return
            self._busy = True
            try:
                self._drain()
            finally:
                self._busy = False

    def _drain(self) -> None:
        while self._queue:
            for to, answer in self._queue.popleft()():
                self._clients[to].deliver(answer)


class _InprocChannel:
    def __init__(self, hub: _Hub, member: int) -> None:
        self._hub = hub
        self._member = member

    def send(self, message: Message) -> None:
        self._hub.post(self._member, message)

    def close(self) -> None:
        self._hub.post(self._member, None)

    def abandon(self) -> None:
        pass


class _Cluster:
    def __init__(
        self,
        size: int,
        servers: int,
        config: Config,
        engines: tuple[Engine | None, NodeEngine | None],
        nodes: Sequence[int],
        apart: bool,
    ) -> None:
        if uses_collectives(config):
            servers = 0
        self._config = config
        self._nodes = nodes
        self._apart = apart
        self._engine, self._node_engine = engines[0] or InProcessGroup(size).join, engines[1]
        self._hub = _Hub()
        self._hub.drive(
            Coordinator(
                size,
                servers,
                join_timeout_s=config.join_timeout_s,
                later=self._hub.later,
                tune_folder=Path(config.tune_results) if config.tune_results else None,
                connection_rate=config.connection_rate,
            )
        )
        self.failures: list[str] = []
        self.servers = [Server(config, self._server_ended) for _ in range(servers)]
        for server in self.servers:
            self._hub.connect(server.control)
            join = Join(role="server", incarnation="test", num_servers=servers, may_add_lanes=apart)
            server.control.notify(join)

    def _server_ended(self, reason: str | None) -> None:
        if reason is not None:
            self.failures.append(reason)

    def join(self, rank: int, size: int) -> Session:
        """One worker joins. Returns when all have."""
        config = dataclasses.replace(self._config, rank=rank, size=size, local_rank=rank, local_size=size)
        relay = Relay()
        control = ControlClient(relay.on_notice, relay.on_closed)
        self._hub.connect(control)

        def link(server: int, lane: int) -> _native.Link:
            here, there = _native.inproc_links()
            self.servers[server].native.add_link(welcome.rank, lane, there)
            return here

        with contextlib.ExitStack() as stack:
            entrance = self._entrance(config, rank)
            if entrance is not None:
                stack.callback(entrance.close)
            message = join_message(config, entrance)
            if self._apart:
                message = msgspec.structs.replace(message, address=f"host {rank}", may_add_lanes=True)
            welcome = control.join(message, JOIN_TIMEOUT_S)
            trace = open_trace(config, "worker", welcome.rank, welcome.size)
            worker = start_data_plane(config, welcome, link, None, trace.capacity, entrance)
        communicator: Communicator
        if uses_collectives(config):
            communicator = AllReduce(control, welcome, config, worker.close, trace)
        else:
            communicator = ParameterServer(control, worker, welcome, credit_of(config), trace)
            if self._node_engine is not None and welcome.nodes:
                communicator = NodeFirst(control, communicator, welcome, config)
        trace.start(worker.take_events, control.wall_clock_s)
        session = Session(config, welcome, communicator, control, trace)
        relay.attach(session)
        try:
            if isinstance(communicator, AllReduce):
                communicator.start(self._engine)
            elif isinstance(communicator, NodeFirst) and self._node_engine is not None:
                communicator.start(self._node_engine)
        except BaseException:
            session.shutdown()
            raise
        return session

    def _entrance(self, config: Config, rank: int) -> Entrance | None:
        entrance = Entrance.open(dataclasses.replace(config, local_size=0)) if self._nodes else None
        return entrance and dataclasses.replace(entrance, place=f"node {self._nodes[rank]}")


@contextlib.contextmanager
def cluster(
    size: int,
    servers: int = 1,
    *,
    engine: Engine | None = None,
    node_engine: NodeEngine | None = None,
    nodes: Sequence[int] = (),
    apart: bool = False,
    **settings: object,
) -> Iterator[list[Session]]:
    """A job of ``size`` workers and some servers within this process.

    Args:
        size: number of workers.
        servers: number of servers; with ``communicator="allreduce"`` there are none.
        engine: carries out the collectives of ``communicator="allreduce"``; in memory if not given.
        node_engine: makes the collectives by which the ranks of each of the ``nodes`` sum first.
        nodes: by rank, the node that it is to believe itself on; those of one node sum in shared memory
            first. Empty: each is on a node of its own.
        apart: whether the coordinator is to believe that each rank has a host to itself, and spare lanes are
            of use.
        settings: fields of ``Config``.

    Yields:
        One session per rank; they are shut down at the end.
    """
    job = _Cluster(size, servers, Config(**settings), (engine, node_engine), nodes, apart)  # type: ignore[arg-type]
    sessions: list[Session] = []
    try:
        with concurrent.futures.ThreadPoolExecutor(size) as pool:
            sessions += pool.map(lambda rank: job.join(rank, size), range(size))
        yield sessions
    finally:
        for session in sessions:
            session.shutdown()
        while job.servers:
            job.servers.pop().close(drain_s=0)


def run_ranks(sessions: Sequence[Session], function: Callable[[Session], Result]) -> list[Result]:
    """Call ``function(session)`` on one thread per rank.

    Returns:
        The results by rank. If a rank raised, its exception is raised here, once all threads have ended.
    """
    with concurrent.futures.ThreadPoolExecutor(len(sessions)) as pool:
        futures = [pool.submit(function, session) for session in sessions]
        concurrent.futures.wait(futures)
    return [future.result() for future in futures]
