"""The accepting end of a port: who is turned away, with what words, and who has to make room."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from byteps.errors import HandshakeError
from byteps.network import listen
from byteps.security import Door, Identity, accept_steps, async_handshake, connect_steps, door

TOKEN = b"a secret of the tests"
CLOSE = struct.pack("ii", 0, 0)
RESET = struct.pack("ii", 1, 0)


class Port:
    """A door with a listener, and how many came through."""

    def __init__(self, listener: socket.socket) -> None:
        self.address = listener.getsockname()
        self.door = Door(listener, self._admit)
        self.admitted = 0

    async def _admit(self, sock: socket.socket) -> None:
        own = Identity(role="coordinator")
        await async_handshake(asyncio.get_running_loop(), sock, accept_steps(TOKEN, own))
        self.admitted += 1
        sock.close()

    async def visit(self, token: bytes = TOKEN) -> None:
        """Come in, if the token is right."""
        with await self.connect() as sock:
            steps = connect_steps(token, Identity(role="worker"))
            await async_handshake(asyncio.get_running_loop(), sock, steps)

    async def connect(self) -> socket.socket:
        sock = socket.socket()
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, self.address)
        return sock


@contextlib.asynccontextmanager
async def port() -> AsyncIterator[Port]:
    with listen("127.0.0.1", 0) as listener:
        listener.setblocking(False)
        one = Port(listener)
        serving = asyncio.create_task(one.door.serve())
        try:
            yield one
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            await one.door.close()


async def is_closed(sock: socket.socket) -> bool:
    """Wait until the other end has closed the connection."""
    with sock, contextlib.suppress(ConnectionError):
        while await asyncio.wait_for(asyncio.get_running_loop().sock_recv(sock, 4096), 10):
            pass
    return True


def bounded(scene: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scene(), 20))


@pytest.mark.parametrize("linger", [CLOSE, RESET], ids=["closed", "reset"])
def test_a_port_scan_is_no_news(linger: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        async with port() as one:
            for _ in range(3):
                with await one.connect() as sock:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            await one.visit()
            assert one.admitted == 1

    with caplog.at_level(logging.DEBUG, "byteps"):
        bounded(scene)
    levels = [record.levelno for record in caplog.records if "before its first byte" in record.message]
    assert levels == [logging.DEBUG] * 3
    assert not [record for record in caplog.records if record.levelno >= logging.INFO]


def test_who_says_something_wrong_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        async with port() as one:
            with pytest.raises(HandshakeError):
                await one.visit(b"wrong")
            sock = await one.connect()
            sock.send(b"B")
            sock.shutdown(socket.SHUT_WR)
            assert await is_closed(sock)
            await one.visit()

    bounded(scene)
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert all(text.startswith("turned a connection away: handshake with") for text in caplog.messages)


def test_the_slowest_make_room(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(door, "HANDSHAKES_AT_ONCE", 4)
    monkeypatch.setattr(door, "PATIENCE_S", 0.1)

    async def scene() -> None:
        async with port() as one:
            slow = [await one.connect() for _ in range(6)]
            await one.visit()
            assert one.admitted == 1
            for sock in slow[:3]:
                assert await is_closed(sock)
            for sock in slow[3:]:
                sock.close()

    bounded(scene)
    gave_way = [
        text for text in caplog.messages if text.endswith("was slow, and others waited for its place")
    ]
    assert len(gave_way) >= 3


def test_a_fault_of_our_own_is_shown_and_keeps_nobody_out(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        async with port() as one:
            one.admitted = "not a number"  # type: ignore[assignment]
            await one.visit()
            one.admitted = 0
            await one.visit()
            assert one.admitted == 1

    bounded(scene)
    assert [record.exc_info is not None for record in caplog.records] == [True]
