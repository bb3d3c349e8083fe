"""The worker's end of a meeting: offers, and takes what the server chooses."""

from __future__ import annotations

import contextlib
import socket
import time

import msgspec

from byteps import _native
from byteps.config import Config
from byteps.errors import HandshakeError, JoinError, remedy
from byteps.security import Identity, handshake, load_token
from byteps.transport.meeting import Answer, Offer, Settled, allowed, hear, say, shortened
from byteps.transport.memory import Memory, NotShared, Window
from byteps.transport.ucx import Library, NoUcx, connect


class Meeting(msgspec.Struct, frozen=True):
    """What came of a meeting.

    Attributes:
        link: the link, which owns the connection.
        transport: what it goes through: "tcp", "shm" or "ucx".
        reason: why two processes of one host go through TCP although they may share memory; else empty.
    """

    link: _native.Link
    transport: str
    reason: str = ""


def meet_server(
    sock: socket.socket, config: Config, worker: Identity, server: Identity, limit_s: float, ucx: Library
) -> Meeting:
    """Agree with a server over an authenticated, blocking connection.

    The socket is the link's afterwards; after an error it must be closed.

    Args:
        sock: the connection.
        config: this worker's settings.
        worker: this end.
        server: the other end.
        limit_s: how long it may take.
        ucx: for ``transport = ucx``.

    Raises:
        HandshakeError: the server refused, or was too slow.
        JoinError: what ``transport`` asks for cannot be had: shared memory, or UCX.
    """
    end_s = time.monotonic() + limit_s
    if config.transport == "ucx":
        return _through_ucx(sock, config, worker, end_s, ucx)
    with contextlib.ExitStack() as stack:
        window, problem = None, ""
        if "shm" in allowed(config.transport, "auto"):
            window, problem = _open_window(config, worker, server)
        if window is not None:
            stack.enter_context(window)
        offer = Offer(config.transport, window.name if window else "", shortened(problem))  # type: ignore[arg-type]
        handshake(sock, say(offer), _left(end_s))
        memory = window.receive(sock, end_s) if window else problem
        if isinstance(memory, Memory):
            stack.callback(memory.close)
        answer = handshake(sock, hear(Answer), _left(end_s))
        if answer.refused:
            raise HandshakeError(answer.reason)
        link, reason = None, answer.reason if answer.near else ""
        if answer.transport == "shm":
            link, reason = _through(memory, sock)
            handshake(sock, say(Settled(shortened(reason))), _left(end_s))
    if link is not None:
        sock.close()
        return Meeting(link, "shm")
    if config.transport == "shm":
        raise JoinError(
            f"the {worker} and the {server} cannot share memory, and transport = shm asks for it: "
            f"{reason or answer.reason}; put both on one host, or set BYTEPS_TRANSPORT=auto"
        )
    return Meeting(_native.socket_link(sock.detach()), "tcp", reason)


def _through_ucx(
    sock: socket.socket, config: Config, worker: Identity, end_s: float, ucx: Library
) -> Meeting:
    try:
        port = ucx.open_port(config)
        handshake(sock, say(Offer("ucx", ucx=port.address())), _left(end_s))
        answer = handshake(sock, hear(Answer), _left(end_s))
        if answer.refused:
            raise HandshakeError(answer.reason)
        return Meeting(connect(port, sock, answer.ucx, _left(end_s)), "ucx")
    except NoUcx as error:
        raise JoinError(f"transport = ucx, but the {worker} cannot use it: {error}") from error


def _open_window(config: Config, worker: Identity, server: Identity) -> tuple[Window | None, str]:
    try:
        return Window(load_token(config), worker, server), ""
    except OSError as error:
        return None, f"cannot open a Unix socket: {error.strerror}{remedy(error)}"


def _through(memory: Memory | str, sock: socket.socket) -> tuple[_native.Link | None, str]:
    """The link through what came in at the window, or why there is none."""
    if isinstance(memory, str):
        return None, memory
    try:
        return memory.link(sock), ""
    except NotShared as error:
        return None, str(error)


def _left(end_s: float) -> float:
    return max(end_s - time.monotonic(), 0.0)
