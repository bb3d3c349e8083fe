"""Run the handshake's steps, or others of its form, over a socket: a blocking one, or one under asyncio.

Both read exactly the steps' bytes, so the socket can then be handed to the native core or to TLS.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Generator
from typing import TypeVar

from byteps.config import format_address
from byteps.errors import HandshakeError

DEADLINE_S = 5.0

Result = TypeVar("Result")
_Steps = Generator["int | bytes", bytes, Result]


class HungUp(HandshakeError):
    """The peer closed the connection before its first byte, as port scans and health probes do."""


def handshake(sock: socket.socket, steps: _Steps[Result], deadline_s: float = DEADLINE_S) -> Result:
    """Run the steps over a blocking socket.

    The socket stays open in every case and keeps its timeout; after an error it must be closed.

    Args:
        sock: a connected socket.
        steps: ``connect_steps(...)`` or ``accept_steps(...)``.
        deadline_s: time for the whole handshake, however slowly the peer sends.

    Returns:
        What the steps return: the peer's identity.

    Raises:
        HandshakeError: the peer failed to prove itself, was too slow, or closed the connection.
    """
    peer, timeout, end = _peer_name(sock), sock.gettimeout(), time.monotonic() + deadline_s
    transfers = _transfers(steps)
    try:
        item = next(transfers)
        while True:
            # Zero would make the socket non-blocking; the least positive timeout runs out at once.
            sock.settimeout(max(end - time.monotonic(), 1e-6))
            item = transfers.send(_send(sock, item) if isinstance(item, bytes) else sock.recv_into(item))
    except StopIteration as stop:
        result: Result = stop.value
        return result
    except (HandshakeError, OSError) as error:
        raise _explained(error, peer, deadline_s) from error
    finally:
        sock.settimeout(timeout)


async def async_handshake(
    loop: asyncio.AbstractEventLoop,
    sock: socket.socket,
    steps: _Steps[Result],
    deadline_s: float = DEADLINE_S,
) -> Result:
    """Run the steps over a non-blocking socket under asyncio; in all else as ``handshake``.

    Args:
        loop: the running event loop.
        sock: a connected socket in non-blocking mode.
        steps: ``connect_steps(...)`` or ``accept_steps(...)``.
        deadline_s: time for the whole handshake, however slowly the peer sends.

    Returns:
        What the steps return: the peer's identity.

    Raises:
        HandshakeError: the peer failed to prove itself, was too slow, or closed the connection; ``HungUp`` if
            that was before its first byte.
    """
    peer = _peer_name(sock)
    try:
        return await asyncio.wait_for(_drive(loop, sock, _transfers(steps)), deadline_s)
    except (HandshakeError, OSError, asyncio.TimeoutError) as error:
        raise _explained(error, peer, deadline_s) from error


async def _drive(
    loop: asyncio.AbstractEventLoop, sock: socket.socket, transfers: _Transfers[Result]
) -> Result:
    started = False
    try:
        item = next(transfers)
        while True:
            if isinstance(item, bytes):
                await loop.sock_sendall(sock, item)
                count = 0
            else:
                count = await loop.sock_recv_into(sock, item)
                if count == 0 and not started:
                    raise HungUp("it closed the connection before its first byte")
            started = True
            item = transfers.send(count)
    except ConnectionError as error:
        if started:
            raise
        raise HungUp("it reset the connection before its first byte") from error
    except StopIteration as stop:
        result: Result = stop.value
        return result


_Transfers = Generator["bytes | memoryview", int, Result]


def _transfers(steps: _Steps[Result]) -> _Transfers[Result]:
    """Turn steps into single transfers: bytes to send, or a buffer to fill, answered by the bytes read."""
    answer: bytes | None = None
    while True:
        try:
            want = next(steps) if answer is None else steps.send(answer)
        except StopIteration as stop:
            result: Result = stop.value
            return result
        if isinstance(want, bytes):
            yield want
            answer = b""
            continue
        buffer = bytearray(want)
        space = memoryview(buffer)
        while space:
            count = yield space
            if not count:
                raise ConnectionResetError("end of stream")
            space = space[count:]
        answer = bytes(buffer)


def _send(sock: socket.socket, frame: bytes) -> int:
    sock.sendall(frame)
    return 0


def _peer_name(sock: socket.socket) -> str:
    try:
        address = sock.getpeername()
    except OSError:
        return "a peer that is gone"
    return format_address(*address[:2]) if isinstance(address, tuple) else "a local peer"


def _explained(error: Exception, peer: str, deadline_s: float) -> HandshakeError:
    """Say in one sentence what went wrong with whom."""
    if isinstance(error, HandshakeError):
        return type(error)(f"handshake with {peer}: {error}")
    if isinstance(error, (TimeoutError, asyncio.TimeoutError)):
        return HandshakeError(
            f"handshake with {peer}: not finished within {deadline_s:g} s; "
            f"it is overloaded, or something else than byteps listens there"
        )
    return HandshakeError(
        f"handshake with {peer}: it closed the connection ({error}); its log says why, "
        f"unless something else than byteps listens there"
    )
