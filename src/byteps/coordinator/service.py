"""The coordinator as a process: listens, lets authenticated peers in, and drives the sans-IO core.

Nothing here polls: the process wakes when a peer says something or when the core's next deadline has come.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from byteps import network, security
from byteps.config import Config
from byteps.coordinator.connections import BeaconConnection, ControlConnection
from byteps.coordinator.core import Coordinator, Outbox
from byteps.diagnostics import DumpOnSignal
from byteps.security import Identity
from byteps.tuning.tuner import Try
from byteps.wire import AskClock, Clock, Heartbeat, Message

_log = logging.getLogger(__name__)


async def serve(config: Config, *, ready: Callable[[str, int], None]) -> int:
    """Coordinate one job.

    Args:
        config: The coordinator's settings; ``size`` and ``num_servers`` may be left to the members to tell.
        ready: Called once with the host and port to connect to.

    Returns:
        The process's exit code: 0 when all members left in order, 1 when the job failed.

    Raises:
        ConfigError: It cannot listen where it is told to, or must not without a token.
    """
    security.warn_of_open_token(config)
    token = security.load_token(config)
    host = network.bind_address(config)
    security.check_bind(host, token, config.insecure)
    tls = security.server_tls(config)
    with network.listen(host, config.port) as listener:
        listener.setblocking(False)
        service = _Service(config, token, tls)
        dump = DumpOnSignal("coordinator", service.core.describe)
        own = network.parse_address(config.coordinator)[0] if config.coordinator else ""
        ready(network.advertised_address(config, own), listener.getsockname()[1])
        try:
            await service.run(listener)
        finally:
            dump.close()
    if service.core.failure is not None:
        _log.error("the job failed: %s", service.core.failure)
        return 1
    return 0


class _Service:
    """Connections by member, and the one timer."""

    def __init__(self, config: Config, token: bytes, tls: ssl.SSLContext | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._token = token
        self._tls = tls
        self._job_id = config.job_id
        self._heartbeat_s = config.heartbeat_s
        self._over = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._next_member = itertools.count()
        self._members: dict[int, ControlConnection] = {}
        self._beacons: set[BeaconConnection] = set()
        self.core = Coordinator(
            config.size,
            config.num_servers,
            self._loop.time,
            config.join_timeout_s,
            config.peer_timeout_s,
            self._later,
            Path(config.tune_results).expanduser() if config.tune_results else None,
            config.connection_rate,
        )

    async def run(self, listener: socket.socket) -> None:
        """Serve until the job is over."""
        self._settle([])
        door = security.Door(listener, self._admit)
        accepting = asyncio.create_task(door.serve())
        beating = asyncio.create_task(self._beat())
        over = asyncio.create_task(self._over.wait())
        try:
            working = {accepting, beating, over}
            done, _ = await asyncio.wait(working, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await self._close([accepting, beating, over])
            await door.close()

    async def _beat(self) -> NoReturn:
        """Let everybody know, members or not yet, that the coordinator lives."""
        while True:
            await asyncio.sleep(self._heartbeat_s)
            for connection in list(self._members.values()):
                connection.send(Heartbeat())

    async def _admit(self, sock: socket.socket) -> None:
        """Let a peer in if it belongs to this job."""
        steps = security.accept_steps(self._token, self._identity_for, _objection)
        peer = await security.async_handshake(self._loop, sock, steps)
        await (self._attach_beacon if peer.purpose == "beacon" else self._attach_control)(sock, peer)

    def _identity_for(self, peer: Identity) -> Identity:
        """Both control and heartbeat connections come here; only the former use TLS."""
        beacon = peer.purpose == "beacon"
        return Identity(
            role="coordinator",
            job_id=self._job_id,
            purpose="beacon" if beacon else "control",
            tls=self._tls is not None and not beacon,
        )

    async def _attach_control(self, sock: socket.socket, peer: Identity) -> None:
        member = next(self._next_member)

        def received(message: Message) -> None:
            if isinstance(message, AskClock):  # of whoever has the token, a member or not
                connection.send(Clock(message.request, time.time()))
            else:
                self._settle(self.core.received(member, message))

        def ended(reason: str) -> None:
            self._members.pop(member, None)
            self._settle(self.core.disconnected(member, reason))

        connection = self._members[member] = ControlConnection(peer, received, ended)
        limit_s = None if self._tls is None else security.DEADLINE_S
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection, sock, ssl=self._tls, ssl_handshake_timeout=limit_s
            )
        except OSError:
            self._members.pop(member, None)
            raise

    async def _attach_beacon(self, sock: socket.socket, peer: Identity) -> None:
        connection = BeaconConnection(
            lambda: self.core.heartbeat(peer.role, peer.number), self._beacons.discard
        )
        self._beacons.add(connection)
        await self._loop.connect_accepted_socket(lambda: connection, sock)
        self._settle([])

    def _later(self, work: Callable[[], Try], deliver: Callable[[Try], Outbox]) -> None:
        """Run ``work`` on a thread that nobody waits for when the job is over."""

        def run() -> None:
            result = work()
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(lambda: self._settle(deliver(result)))

        threading.Thread(target=run, name="byteps-tuner", daemon=True).start()

    def _settle(self, outbox: Outbox) -> None:
        """Deliver what the core wants said, then see whether it is finished and when to wake it."""
        for member, message in outbox:
            connection = self._members.get(member)
            if connection is not None:
                connection.send(message)
        if self.core.finished:
            self._over.set()
        deadline_s = self.core.deadline_s
        if deadline_s is not None and (self._timer is None or deadline_s < self._timer.when()):
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(deadline_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._settle(self.core.tick())

    async def _close(self, tasks: Sequence[asyncio.Future[Any]]) -> None:
        for connection in [*self._members.values(), *self._beacons]:
            connection.abort()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()


def _objection(peer: Identity) -> str:
    return "there is one coordinator in a job, this one" if peer.role == "coordinator" else ""
