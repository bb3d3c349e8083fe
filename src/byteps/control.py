"""A member's end of the control plane: calls to the coordinator, and what it says unasked.

``ControlClient`` matches answers to calls; a ``Channel`` carries the messages: ``SocketChannel`` over TCP (or
TLS), and in ``byteps.testing`` one within the process.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import logging
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from byteps.config import Config, parse_address
from byteps.errors import JoinError, PeerLost, ProtocolError, SessionClosed, StallTimeout
from byteps.network import connect
from byteps.security import Identity, client_tls, connect_steps, handshake, load_token
from byteps.wire import (
    BarrierDone,
    Clock,
    Declared,
    Decoder,
    Join,
    JoinRefused,
    Lost,
    Message,
    Missing,
    Welcome,
    encode,
)

Answer = TypeVar("Answer", bound=Message)

_ANSWERS = (Declared, BarrierDone, Missing, Clock)
_FIRST_PAUSE_S, _LAST_PAUSE_S, _REMIND_S = 0.05, 1.0, 30.0
_FAREWELL_S = 5.0
"""How long the coordinator has to close a connection that this end has done with."""
_log = logging.getLogger("byteps.control")


class Channel(Protocol):
    """Carries messages to the coordinator. What comes back goes to the client's ``deliver``."""

    def send(self, message: Message) -> None:
        """Send, or raise OSError if the connection has ended."""

    def close(self) -> None:
        """End the connection. ``ControlClient.closed`` may still be called once."""

    def abandon(self) -> None:
        """In a forked child: let go of the connection without ending the parent's."""


class ControlClient:
    """Calls to the coordinator from any thread.

    Args:
        on_notice: called with each message that answers no call, on the channel's thread; must not block.
        on_closed: called once with the reason when the connection ends, unless ``close`` came first.
        on_welcome: called when the job is complete, before any later message is delivered.
    """

    def __init__(
        self,
        on_notice: Callable[[Message], None],
        on_closed: Callable[[str], None],
        on_welcome: Callable[[Welcome], None] = lambda welcome: None,
    ) -> None:
        self._on_notice = on_notice
        self._on_closed = on_closed
        self._on_welcome = on_welcome
        self._channel: Channel | None = None
        self._lock = threading.Lock()
        self._requests = itertools.count(1)
        self._calls: dict[int, concurrent.futures.Future[Message]] = {}
        self._welcome: concurrent.futures.Future[Message] = concurrent.futures.Future()
        self._end: PeerLost | SessionClosed | None = None

    def attach(self, channel: Channel) -> None:
        """Use this channel from now on."""
        self._channel = channel

    def join(self, message: Join, timeout_s: float) -> Welcome:
        """Become a member; returns once the job is complete.

        Raises:
            JoinError: refused, or the others did not come in time.
            PeerLost: a member died before the job was complete.
        """
        self.notify(message)
        try:
            answer = self._welcome.result(timeout_s)
        except concurrent.futures.TimeoutError as error:
            raise JoinError(
                f"the job was not complete within {timeout_s:g} s; the coordinator's log names who is missing"
            ) from error
        if isinstance(answer, JoinRefused):
            raise JoinError(answer.reason)
        assert isinstance(answer, Welcome)
        return answer

    def call(
        self, kind: type[Answer], make: Callable[[int], Message], timeout_s: float | None = None
    ) -> Answer:
        """Send ``make(request number)`` and wait for its answer.

        Raises:
            PeerLost: the connection to the coordinator ended.
            StallTimeout: no answer came within ``timeout_s`` seconds.
        """
        future: concurrent.futures.Future[Message] = concurrent.futures.Future()
        with self._lock:
            request = next(self._requests)
            self._calls[request] = future
        try:
            self.notify(make(request))
            answer = future.result(timeout_s)
        except concurrent.futures.TimeoutError as error:
            raise StallTimeout(f"the coordinator did not answer within {timeout_s:g} s") from error
        finally:
            with self._lock:
                self._calls.pop(request, None)
        if not isinstance(answer, kind):
            raise ProtocolError(f"the coordinator answered {type(answer).__name__}, not {kind.__name__}")
        return answer

    def notify(self, message: Message) -> None:
        """Send a message that has no answer.

        Raises:
            PeerLost: the connection to the coordinator ended.
            SessionClosed: because this end closed it.
        """
        if self._end is not None:
            raise type(self._end)(str(self._end))
        if self._channel is None:
            raise PeerLost("not connected to the coordinator")
        try:
            self._channel.send(message)
        except OSError as error:
            raise PeerLost(f"lost the coordinator: {error}") from error

    def deliver(self, message: Message) -> None:
        """A message has come in. Called by the channel."""
        if isinstance(message, Welcome | JoinRefused) and not self._welcome.done():
            try:
                if isinstance(message, Welcome):
                    self._on_welcome(message)
            except Exception as error:  # whoever waits for it must not wait for ever
                self._welcome.set_exception(JoinError(f"cannot start: {error}"))
            else:
                self._welcome.set_result(message)
        elif isinstance(message, Lost) and not self._welcome.done():
            self._welcome.set_exception(PeerLost(message.reason))
        elif isinstance(message, _ANSWERS):
            with self._lock:
                future = self._calls.get(message.request)
            if future is not None:
                future.set_result(message)
        else:
            self._on_notice(message)

    def closed(self, reason: str) -> None:
        """The connection has ended. Called by the channel."""
        if self._end is not None:
            return
        self._fail(PeerLost(f"lost the coordinator: {reason}"))
        self._on_closed(reason)

    def fail(self, reason: str) -> None:
        """The job is lost, though the connection may still be there: calls in progress and to come fail."""
        if self._end is None:
            self._fail(PeerLost(reason))

    def close(self) -> None:
        """End the connection; calls in progress fail."""
        if self._end is None:
            self._fail(SessionClosed("the session was shut down"))
        # They lead back to the owner: without them it is freed at once, and not when garbage is collected.
        self._on_notice = self._on_closed = self._on_welcome = _ignore
        if self._channel is not None:
            self._channel.close()

    def abandon(self) -> None:
        """In a forked child: drop what was inherited."""
        self._end = PeerLost("this process was forked from a member of the job")
        if self._channel is not None:
            self._channel.abandon()

    def _fail(self, error: PeerLost | SessionClosed) -> None:
        self._end = error
        with self._lock:
            waiting = [*self._calls.values(), self._welcome]
            self._calls.clear()
        for future in waiting:
            if not future.done():
                future.set_exception(error)


def _ignore(_: object) -> None:
    """For a client that has been closed."""


class Owner(Protocol):
    """What notices are for."""

    def on_notice(self, message: Message) -> None:
        """A message that answers no call has come."""

    def fail(self, reason: str) -> None:
        """The job cannot go on."""


class Relay:
    """Passes notices to an owner that is made only after the first of them may have come."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._early: list[Callable[[Owner], None]] = []
        self._owner: Owner | None = None

    def attach(self, owner: Owner) -> None:
        """The owner is there now."""
        with self._lock:
            self._owner = owner
            early, self._early = self._early, []
        for action in early:
            action(owner)

    def on_notice(self, message: Message) -> None:
        """For ``ControlClient``."""
        self._pass(lambda owner: owner.on_notice(message))

    def on_closed(self, reason: str) -> None:
        """For ``ControlClient``."""
        self._pass(lambda owner: owner.fail(f"lost the coordinator: {reason}"))

    def _pass(self, action: Callable[[Owner], None]) -> None:
        with self._lock:
            owner = self._owner
            if owner is None:
                self._early.append(action)
        if owner is not None:
            action(owner)


class SocketChannel:
    """Messages over a connected socket, which may be wrapped in TLS. Reads on a thread of its own."""

    def __init__(self, sock: socket.socket, client: ControlClient) -> None:
        self._sock = sock
        self._client = client
        # OpenSSL allows one call at a time on a connection, also of one reader and one writer.
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, name="byteps-control", daemon=True)

    def start(self) -> None:
        """Begin to deliver messages."""
        self._reader.start()

    def send(self, message: Message) -> None:
        """See ``Channel.send``."""
        data = encode(message)
        with self._lock:
            self._sock.sendall(data)

    def close(self) -> None:
        """See ``Channel.close``."""
        # Only this direction, until the coordinator closes the other: if it came to write to a closed
        # connection, it would lose what was said last, and take a rank that leaves for one that died.
        self._shutdown(socket.SHUT_WR)
        if self._reader.is_alive() and threading.current_thread() is not self._reader:
            self._reader.join(_FAREWELL_S)
            self._shutdown(socket.SHUT_RDWR)
            self._reader.join()
        self._sock.close()

    def _shutdown(self, how: int) -> None:
        """On the socket itself: that of ``ssl`` could not be read from afterwards."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._sock, how)

    def abandon(self) -> None:
        """See ``Channel.abandon``."""
        socket.close(self._sock.detach())

    def _read(self) -> None:
        decoder = Decoder()
        readable = select.poll()
        readable.register(self._sock, select.POLLIN)
        reason = "connection closed"
        try:
            while True:
                readable.poll()
                with self._lock:
                    data = self._receive()
                if data is None:
                    continue
                if not data:
                    break
                for message in decoder.feed(data):
                    self._client.deliver(message)
        except (OSError, ProtocolError) as error:
            reason = str(error)
        self._client.closed(reason)

    def _receive(self) -> bytes | None:
        """What has come: nothing (None) if that was TLS's own, such as a session ticket; b"" at the end."""
        self._sock.setblocking(False)  # or it would wait for more while it holds the lock
        try:
            data = self._sock.recv(65536)
            while isinstance(self._sock, ssl.SSLSocket) and self._sock.pending():
                data += self._sock.recv(self._sock.pending())
            return data
        except (ssl.SSLWantReadError, BlockingIOError):
            return None
        finally:
            self._sock.setblocking(True)


def open_control(config: Config, client: ControlClient, role: str) -> SocketChannel:
    """Connect to the coordinator, prove who we are and attach the client.

    Args:
        role: "worker" or "server".

    Raises:
        JoinError: there is no coordinator at that address.
        HandshakeError: it is another job's, or the tokens differ.
    """
    tls = client_tls(config)
    identity = Identity(role=role, job_id=config.job_id, purpose="control", tls=tls is not None)
    sock = dial_coordinator(config, identity)
    channel = SocketChannel(tls.wrap_socket(sock) if tls else sock, client)
    client.attach(channel)
    channel.start()
    return channel


def open_beacon(config: Config, role: str, welcome: Welcome) -> int:
    """Descriptor of a connection on which native code shows the coordinator that this process lives."""
    identity = Identity(
        role=role, number=welcome.rank, job_id=config.job_id, purpose="beacon", epoch=welcome.epoch
    )
    return dial_coordinator(config, identity).detach()


def dial_coordinator(config: Config, identity: Identity) -> socket.socket:
    """A connected, authenticated socket to the coordinator.

    Raises:
        JoinError: nobody listened there within ``join_timeout_s``.
    """
    sock = _reach_coordinator(config)
    try:
        handshake(sock, connect_steps(load_token(config), identity))
    except BaseException:
        sock.close()
        raise
    return sock


def _reach_coordinator(config: Config) -> socket.socket:
    """Connect; roles may start in any order, so try until ``join_timeout_s`` is over."""
    host, port = parse_address(config.coordinator)
    start = time.monotonic()
    warn_s, pause_s = config.stall_warning_s, _FIRST_PAUSE_S
    while True:
        elapsed_s = time.monotonic() - start
        try:
            return connect(host, port, max(config.join_timeout_s - elapsed_s, _FIRST_PAUSE_S))
        except ConnectionError as error:
            if elapsed_s >= config.join_timeout_s:
                raise JoinError(
                    f"{error}; is the coordinator running, and is BYTEPS_COORDINATOR right on this host?"
                ) from error
            if elapsed_s >= warn_s:
                _log.warning("waiting for the coordinator, %.0f s so far: %s", elapsed_s, error)
                warn_s += _REMIND_S
        # A port that nobody listens on yet gives no event to wait for.
        threading.Event().wait(pause_s)
        pause_s = min(2 * pause_s, _LAST_PAUSE_S)
