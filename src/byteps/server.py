"""The server role: sums what workers push. Python accepts connections, native code moves the bytes.

``Server`` is the role itself and runs in any thread; ``run_server`` makes a process of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable
from typing import TypeAlias

from byteps import _native
from byteps.config import Config
from byteps.control import ControlClient
from byteps.diagnostics import DumpOnSignal, OpenRound, count, describe_open, size
from byteps.dialing import open_beacon, open_control
from byteps.errors import BytePSError, HandshakeError, remedy
from byteps.hierarchy import plan
from byteps.network import advertised_address, bind_address, listen
from byteps.security import (
    DEADLINE_S,
    Door,
    Identity,
    accept_steps,
    async_handshake,
    check_bind,
    load_token,
    warn_of_open_token,
)
from byteps.trace import Trace, open_trace
from byteps.transport import Library, may_add_lanes, meet_worker
from byteps.wire import (
    AskMissing,
    Departed,
    End,
    Install,
    Installed,
    InstalledTensor,
    Join,
    Lost,
    Message,
    Missing,
    Welcome,
)

_Part: TypeAlias = tuple[int, int, int, list[int]]
_Installed: TypeAlias = tuple[int, int, int, float, float, list[_Part], list[int], int]

DRAIN_S = 5.0
"""How long a server that ends goes on sending what is under way."""

_log = logging.getLogger("byteps.server")


class Server:
    """One server of a job.

    Args:
        config: its settings.
        on_end: called on any thread: with ``None`` when the job has ended in order, else with the reason.
    """

    def __init__(self, config: Config, on_end: Callable[[str | None], None]) -> None:
        self.control = ControlClient(self._on_notice, on_end, self._start)
        self._config = config
        self._trace = Trace()
        self._on_end = on_end
        self._native: _native.Server | None = None
        self._names: dict[int, str] = {}
        self._size = 0
        self._nodes: list[list[int]] = []

    @property
    def native(self) -> _native.Server:
        """The native server; there is one once the job is complete."""
        assert self._native is not None, "the server has not started"
        return self._native

    def report(self) -> list[str]:
        """What is being summed and whom it waits for, line by line."""
        native = self._native
        if native is None:
            return ["it is joining a job that is not complete yet"]
        rounds = [
            OpenRound(self._names.get(tensor, f"tensor {tensor}"), number, partition, nbytes, ranks)
            for tensor, partition, number, nbytes, ranks in native.open_rounds()
        ]
        traffic = f"{size(native.bytes_sent)} sent, {size(native.bytes_received)} received"
        return [f"{count(len(rounds), 'partition')} open", *describe_open(rounds), traffic]

    def fail(self, reason: str) -> None:
        """This server cannot go on."""
        self._on_end(reason)

    def close(self, drain_s: float = DRAIN_S) -> None:
        """Send what is under way, then end all connections."""
        if self._native is not None:
            self._native.close(drain_s)
        self.control.close()
        self._trace.close()  # it may take a while, and the coordinator must not wait for it

    def _start(self, welcome: Welcome) -> None:
        # Before the next message is looked at: it may be a tensor to install.
        self._trace = open_trace(self._config, "server", welcome.rank, welcome.size)
        self._size, self._nodes = welcome.size, welcome.nodes
        self._native = _native.Server(
            welcome.size,
            welcome.settings.lanes,
            deterministic=welcome.settings.deterministic,
            heartbeat_s=self._config.heartbeat_s,
            epoch=welcome.epoch,
            event_capacity=self._trace.capacity,
        )
        self._native.start()
        self._trace.start(self._native.take_events, self.control.wall_clock_s)

    def _on_notice(self, message: Message) -> None:
        if isinstance(message, Install):
            self.native.retire(message.retire)
            for tensor in message.retire:
                self._names.pop(tensor, None)
            self._names.update({tensor.id: tensor.name for tensor in message.tensors})
            for installed in message.tensors:
                self._trace.name_tensor(installed.id, installed.name)
            self.native.install([self._installed(tensor) for tensor in message.tensors])
            self.control.notify(Installed(message.request))
        elif isinstance(message, AskMissing):
            late = self.native.missing(message.id)
            self.control.notify(Missing(message.request, [rank for rank, _ in late], [s for _, s in late]))
        elif isinstance(message, Departed):
            self.native.depart(message.rank)
        elif isinstance(message, Lost):
            self._on_end(message.reason)
        elif isinstance(message, End):
            self._on_end(None)

    def _installed(self, tensor: InstalledTensor) -> _Installed:
        """What native code is to know of a tensor."""
        shared = plan(tensor, self._nodes)
        if shared is None or shared.server is None:  # of what stays within a node nothing comes here
            own = (tensor.dtype, tensor.op, tensor.prescale, tensor.postscale)
            return tensor.id, *own, [(*part, []) for part in tensor.parts], tensor.members, 0
        what = shared.server
        parts = [
            (index, lane, nbytes, shared.owners(index, self._size)) for index, lane, nbytes in tensor.parts
        ]
        scales = (what.prescale, what.postscale)
        return tensor.id, tensor.dtype, what.op, *scales, parts, tensor.members, what.divisor


class _Acceptor:
    """Hands the data connections of workers that prove themselves to the native server."""

    def __init__(self, config: Config, server: Server) -> None:
        self._token = load_token(config)
        self._server = server
        self._config = config
        self._ucx = Library()
        self._welcome: asyncio.Future[Welcome] = asyncio.get_running_loop().create_future()

    def open(self, welcome: Welcome) -> None:
        """From now on connections can be served; those that came earlier have waited."""
        self._welcome.set_result(welcome)

    async def serve(self, listener: socket.socket) -> None:
        """Accept until cancelled."""
        door = Door(listener, self._admit)
        try:
            await door.serve()
        except OSError as error:
            self._server.fail(f"cannot accept connections: {error.strerror}{remedy(error)}")
        finally:
            await door.close()

    async def _admit(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        end_s = loop.time() + DEADLINE_S
        welcome = await self._welcomed()
        identity = Identity(
            role="server",
            number=welcome.rank,
            job_id=self._config.job_id,
            purpose="data",
            epoch=welcome.epoch,
        )
        steps = accept_steps(self._token, identity, lambda peer: _reason_to_refuse(peer, welcome))
        peer = await async_handshake(loop, sock, steps, end_s - loop.time())
        native = self._server.native
        left_s = end_s - loop.time()
        link = await meet_worker(sock, self._config, identity, peer, left_s, self._ucx, native.sum_memory)
        native.add_link(peer.number, peer.lane, link)

    async def _welcomed(self) -> Welcome:
        """Workers come when the job is complete, which they may hear of before this server does."""
        try:
            return await asyncio.wait_for(asyncio.shield(self._welcome), DEADLINE_S)
        except asyncio.TimeoutError as error:
            raise HandshakeError(
                "it came before the job was complete, so it is not one of the workers"
            ) from error


def _reason_to_refuse(peer: Identity, welcome: Welcome) -> str:
    if peer.role != "worker" or not 0 <= peer.number < welcome.size:
        return f"only workers 0 to {welcome.size - 1} connect here, not {peer}"
    if peer.lane >= welcome.settings.lanes:
        return f"this job has {welcome.settings.lanes} connections per pair; there is no number {peer.lane}"
    return ""


def run_server(config: Config, *, ready: Callable[[], None] = lambda: None) -> int:
    """Run one server until the job ends.

    Args:
        config: ``coordinator`` must be set.
        ready: called when this server has joined and can be used.

    Returns:
        0 after an orderly end, 1 when a peer was lost (said in the log).

    Raises:
        BytePSError: it could not join, or may not listen as configured.
    """
    try:
        failure = asyncio.run(_serve(config, ready))
    except ConnectionError as error:
        raise BytePSError(str(error)) from error
    if failure is not None:
        _log.error("%s; this server ends", failure)
    return 0 if failure is None else 1


async def _serve(config: Config, ready: Callable[[], None]) -> str | None:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[str | None] = loop.create_future()

    def note_end(reason: str | None) -> None:
        if not ended.done():
            ended.set_result(reason)

    def end(reason: str | None) -> None:
        loop.call_soon_threadsafe(note_end, reason)

    warn_of_open_token(config)
    host = bind_address(config)
    check_bind(host, load_token(config), config.insecure)
    server = Server(config, end)
    with listen(host, config.port) as listener:
        listener.setblocking(False)
        acceptor = _Acceptor(config, server)
        dump = DumpOnSignal("server", server.report)
        serving = loop.create_task(acceptor.serve(listener))
        drain_s = 0.0
        try:
            acceptor.open(await _joined(config, server, listener.getsockname()[1]))
            ready()
            if await ended is None:  # after a failure nobody needs what is under way
                drain_s = DRAIN_S
            return ended.result()
        finally:
            dump.close()
            serving.cancel()
            await asyncio.to_thread(server.close, drain_s)


async def _joined(config: Config, server: Server, port: int) -> Welcome:
    """Join on a thread that nobody waits for when this process is interrupted: it may take long."""
    loop = asyncio.get_running_loop()
    joined: asyncio.Future[Welcome] = loop.create_future()

    def settle(settle_it: Callable[[], None]) -> None:
        if not joined.done():
            settle_it()

    def run() -> None:
        try:
            welcome = _join(config, server, port)
            action = functools.partial(joined.set_result, welcome)
        except Exception as error:  # raised where the future is awaited
            action = functools.partial(joined.set_exception, error)
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, action)

    threading.Thread(target=run, name="byteps-join", daemon=True).start()
    return await joined


def _join(config: Config, server: Server, port: int) -> Welcome:
    """Become a member of the job; returns once it is complete."""
    control = server.control
    open_control(config, control, "server")
    welcome = control.join(_join_message(config, port), config.join_timeout_s)
    with control.blaming_the_lost():
        server.native.add_beacon(_native.socket_link(open_beacon(config, "server", welcome)))
    return welcome


def _join_message(config: Config, port: int) -> Join:
    host = config.coordinator.rpartition(":")[0]
    return Join(
        role="server",
        incarnation=secrets.token_hex(8),
        rank=config.rank,
        num_servers=config.num_servers,
        node=socket.gethostname(),
        address=advertised_address(config, host.strip("[]")),
        port=port,
        pid=os.getpid(),
        weight=config.server_weight,
        may_add_lanes=may_add_lanes(config),
    )
