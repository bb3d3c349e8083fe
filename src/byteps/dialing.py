"""Connections to the coordinator: made, proved, and read for as long as it lives."""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import ssl
import threading
import time

from byteps.config import Config, parse_address
from byteps.control import ControlClient
from byteps.errors import HandshakeError, JoinError, PeerLost, ProtocolError, SessionClosed
from byteps.network import connect
from byteps.security import DEADLINE_S, Identity, client_tls, connect_steps, handshake, load_token
from byteps.wire import Decoder, Message, Welcome, encode

_FIRST_PAUSE_S, _LAST_PAUSE_S, _REMIND_S = 0.05, 1.0, 30.0
_FAREWELL_S = 5.0
"""How long the coordinator has to close a connection that this end has done with."""
_log = logging.getLogger("byteps.control")


class SocketChannel:
    """Messages over a connected socket, which may be wrapped in TLS. Reads on a thread of its own.

    Args:
        sock: the connection.
        client: gets the messages.
        silence_s: after this long without a word the coordinator is lost.
    """

    def __init__(self, sock: socket.socket, client: ControlClient, silence_s: float) -> None:
        self._sock = sock
        self._client = client
        self._silence_s = silence_s
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
                if not self._wait(readable):
                    reason = f"no heartbeat for {self._silence_s:g} s"
                    break
                with self._lock:
                    data = self._receive()
                if data is None:
                    continue
                if not data:
                    break
                for message in decoder.feed(data):
                    self._client.deliver(message)
        except (PeerLost, SessionClosed):
            pass  # what answers a message could not be sent, or this end has closed meanwhile
        except OSError as error:
            reason = f"connection broke: {error}"
        except ProtocolError as error:
            reason = str(error)
        except Exception as error:  # without this thread the process would wait for ever
            _log.exception("cannot handle a message of the coordinator")
            reason = f"cannot handle its message: {error}"
        self._shutdown(socket.SHUT_RDWR)  # a thread that sends must not go on waiting either
        self._client.closed(reason)

    def _wait(self, readable: select.poll) -> bool:
        """Wait for something to read; False if nothing comes in time."""
        if readable.poll(1000 * self._silence_s):
            return True
        # This process may have been stopped meanwhile, longer than the coordinator was silent.
        return bool(readable.poll(0))

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

    Roles may start in any order, so it is tried until ``join_timeout_s`` is over.

    Args:
        role: "worker" or "server".

    Raises:
        JoinError: there is no coordinator at that address.
        HandshakeError: it is another job's, or the tokens differ.
    """
    tls = client_tls(config)
    identity = Identity(role=role, job_id=config.job_id, purpose="control", tls=tls is not None)
    sock = _reach_coordinator(config, config.join_timeout_s)
    _prove(config, sock, identity, DEADLINE_S)
    channel = SocketChannel(_encrypt(sock, tls) if tls else sock, client, config.peer_timeout_s)
    client.attach(channel)
    channel.start()
    return channel


def open_beacon(config: Config, role: str, welcome: Welcome) -> int:
    """Descriptor of a connection on which native code shows the coordinator that this process lives.

    Raises:
        JoinError: the coordinator, which was there before, is gone.
        HandshakeError: it does not answer any more.
    """
    identity = Identity(
        role=role, number=welcome.rank, job_id=config.job_id, purpose="beacon", epoch=welcome.epoch
    )
    sock = _reach_coordinator(config, 0)
    _prove(config, sock, identity, min(DEADLINE_S, config.peer_timeout_s))
    return sock.detach()


def _prove(config: Config, sock: socket.socket, identity: Identity, deadline_s: float) -> None:
    """Run the handshake; after an error the socket is closed."""
    try:
        handshake(sock, connect_steps(load_token(config), identity), deadline_s)
    except HandshakeError as error:
        sock.close()
        raise HandshakeError(f"the coordinator did not let this process in: {error}") from error
    except BaseException:
        sock.close()
        raise


def _encrypt(sock: socket.socket, tls: ssl.SSLContext) -> ssl.SSLSocket:
    sock.settimeout(DEADLINE_S)
    try:
        encrypted = tls.wrap_socket(sock)
    except OSError as error:
        sock.close()
        raise HandshakeError(f"no TLS with the coordinator: {error}; look at BYTEPS_TLS_CA") from error
    encrypted.settimeout(None)
    return encrypted


def _reach_coordinator(config: Config, patience_s: float) -> socket.socket:
    """Connect, trying again for ``patience_s`` seconds if nobody listens there."""
    host, port = parse_address(config.coordinator)
    start = time.monotonic()
    warn_s, pause_s = config.stall_warning_s, _FIRST_PAUSE_S
    while True:
        elapsed_s = time.monotonic() - start
        try:
            return connect(host, port, max(patience_s - elapsed_s, _LAST_PAUSE_S))
        except ConnectionError as error:
            if elapsed_s >= patience_s:
                raise JoinError(
                    f"{error}; is the coordinator running, and is BYTEPS_COORDINATOR right on this host?"
                ) from error
            if elapsed_s >= warn_s:
                _log.warning("waiting for the coordinator, %.0f s so far: %s", elapsed_s, error)
                warn_s += _REMIND_S
        # A port that nobody listens on yet gives no event to wait for.
        threading.Event().wait(pause_s)
        pause_s = min(2 * pause_s, _LAST_PAUSE_S)
