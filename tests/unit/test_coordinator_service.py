"""The coordinator as a process would run it, over real loopback sockets."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from byteps import network
from byteps.config import Config
from byteps.coordinator.service import serve
from byteps.errors import ConfigError, HandshakeError
from byteps.security import Identity, async_handshake, client_tls, connect_steps
from byteps.wire import (
    Barrier,
    BarrierDone,
    Declare,
    Declared,
    Decoder,
    Departed,
    End,
    Heartbeat,
    Install,
    Installed,
    Join,
    JoinRefused,
    Leave,
    Lost,
    Message,
    Placement,
    Welcome,
    encode,
)

from .fake_job import join, spec
from .test_security import CERTIFICATE, KEY

TOKEN = "a secret of the tests"
T = TypeVar("T", bound=Message)


class Peer:
    """One authenticated connection to the coordinator."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._decoder = Decoder()
        self._messages: list[Message] = []

    def send(self, *messages: Message) -> None:
        self.writer.write(b"".join(encode(message) for message in messages))

    async def get(self, kind: type[T]) -> T:
        """The next message other than a heartbeat, which must be of this type."""
        while not self._messages:
            data = await self.reader.read(65536)
            assert data, f"the connection ended before {kind.__name__} came"
            self._take(data)
        message = self._messages.pop(0)
        assert isinstance(message, kind), f"{message} came instead of {kind.__name__}"
        return message

    async def ended(self) -> bool:
        """Wait for the coordinator to close the connection; whether nothing but heartbeats came before."""
        self._take(await self.reader.read())
        return not self._messages

    def _take(self, data: bytes) -> None:
        self._messages += [one for one in self._decoder.feed(data) if one != Heartbeat()]

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


class Job:
    """A coordinator under test and the peers that a test connects to it."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._peers: list[Peer] = []
        self._address: asyncio.Future[tuple[str, int]] = asyncio.get_running_loop().create_future()
        self.exit_code = asyncio.create_task(serve(config, ready=lambda *it: self._address.set_result(it)))

    async def address(self) -> tuple[str, int]:
        return await asyncio.shield(self._address)

    async def connect(
        self, role: str = "worker", number: int = -1, purpose: str = "control", token: str = TOKEN
    ) -> Peer:
        loop = asyncio.get_running_loop()
        sock = socket.socket()
        try:
            sock.setblocking(False)
            await loop.sock_connect(sock, await self.address())
            tls = client_tls(self._config) if purpose == "control" else None
            identity = Identity(role=role, number=number, purpose=purpose, tls=tls is not None)
            await async_handshake(loop, sock, connect_steps(token.encode(), identity))
        except BaseException:
            sock.close()
            raise
        streams = await asyncio.open_connection(sock=sock, ssl=tls, server_hostname="" if tls else None)
        self._peers.append(Peer(*streams))
        return self._peers[-1]

    async def member(self, number: int, role: str = "worker") -> Peer:
        peer = await self.connect(role)
        peer.send(join(number, role=role))
        return peer

    async def members(self) -> list[Peer]:
        """All members, workers first, each past its greeting."""
        peers = [await self.member(rank) for rank in range(self._config.size)]
        peers += [await self.member(number, "server") for number in range(self._config.num_servers)]
        for peer in peers:
            await peer.get(Welcome)
        return peers

    async def close(self) -> None:
        for peer in self._peers:
            await peer.close()
        self.exit_code.cancel()
        await asyncio.gather(self.exit_code, return_exceptions=True)


@contextlib.asynccontextmanager
async def running(size: int = 2, num_servers: int = 1, **settings: object) -> AsyncIterator[Job]:
    job = Job(Config(role="coordinator", size=size, num_servers=num_servers, auth_token=TOKEN, **settings))  # type: ignore[arg-type]
    try:
        yield job
    finally:
        await job.close()


def bounded(scene: Callable[[], Awaitable[None]]) -> None:
    """Run a scene under asyncio, in bounded time."""
    asyncio.run(asyncio.wait_for(scene(), 20))


def test_a_job_from_join_to_orderly_end() -> None:
    async def scene() -> None:
        async with running() as job:
            first, second, server = await job.members()
            first.send(Declare(1, [spec()], [0]), Barrier(2))
            install = await server.get(Install)
            server.send(Installed(install.request))
            (answer,) = (await first.get(Declared)).tensors
            assert isinstance(answer, Placement)
            assert [part.nbytes for part in answer.parts] == [40]
            second.send(Barrier(1))
            assert await first.get(BarrierDone) == BarrierDone(2)
            first.send(Leave())
            await second.get(BarrierDone)
            await first.close()
            assert await second.get(Departed) == await server.get(Departed) == Departed(0)
            second.send(Leave())
            await server.get(End)
            assert not job.exit_code.done()
            await server.close()
            assert await job.exit_code == 0

    bounded(scene)


def test_a_lost_worker_ends_the_job_with_code_1(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        async with running() as job:
            first, second, server = await job.members()
            await first.close()
            text = "worker rank 0 (pid 100 on node0) was lost: connection closed"
            assert await second.get(Lost) == await server.get(Lost) == Lost("worker", 0, text)
            await second.close()
            await server.close()
            assert await job.exit_code == 1
            assert f"the job failed: {text}" in caplog.messages

    with caplog.at_level(logging.ERROR):
        bounded(scene)


def test_survivors_that_do_not_go_are_left_behind() -> None:
    async def scene() -> None:
        async with running() as job:
            first, second, _ = await job.members()
            await first.close()
            await second.get(Lost)
            assert await asyncio.wait_for(job.exit_code, 6) == 1
            assert await second.ended()

    bounded(scene)


def test_a_member_that_breaks_the_protocol_is_lost_with_the_reason() -> None:
    async def scene() -> None:
        async with running() as job:
            first, second, _ = await job.members()
            first.writer.write(b"\x00\x00\x00\x00\xff")
            assert "worker rank 0" in (lost := await second.get(Lost)).reason
            assert "unknown control message type 255" in lost.reason

    bounded(scene)


def test_one_who_is_refused_gets_the_reason_and_the_job_goes_on() -> None:
    async def scene() -> None:
        async with running() as job:
            waiting = await job.member(0)
            twin = await job.member(0)
            assert "has that number already" in (await twin.get(JoinRefused)).reason
            assert await twin.ended()
            await job.member(1)
            await job.member(0, "server")
            assert (await waiting.get(Welcome)).size == 2

    bounded(scene)


def test_nobody_joins_in_another_role_than_proved() -> None:
    async def scene() -> None:
        async with running() as job:
            peer = await job.connect("worker")
            peer.send(Join("server", "x"))
            assert await peer.ended()

    bounded(scene)


def test_strangers_are_turned_away(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        async with running() as job:
            with pytest.raises(HandshakeError, match="token"):
                await job.connect(token="wrong")
            with pytest.raises(HandshakeError, match="one coordinator"):
                await job.connect("coordinator")
            reader, writer = await asyncio.open_connection(*await job.address())
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
            writer.close()
            assert len(await job.members()) == 3

    with caplog.at_level(logging.WARNING):
        bounded(scene)
    turned_away = [text for text in caplog.messages if text.startswith("turned a connection away")]
    assert len(turned_away) == 3


def test_a_silent_beacon_means_a_lost_member() -> None:
    async def scene() -> None:
        async with running(peer_timeout_s=0.4) as job:
            first, _, server = await job.members()
            beats = [
                asyncio.create_task(beat(await job.connect(role, 0, "beacon")))
                for role in ("worker", "server")
            ]
            await job.connect("worker", 1, "beacon")
            lost = await first.get(Lost)
            assert (lost.role, lost.number) == ("worker", 1)
            assert lost.reason.endswith("was lost: no heartbeat for 0.4 s")
            await server.get(Lost)
            for task in beats:
                task.cancel()

    bounded(scene)


async def beat(peer: Peer) -> None:
    """Any bytes on a beacon are life."""
    never = asyncio.Event()
    while True:
        peer.writer.write(b"\x05" * 40)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(never.wait(), 0.05)


def test_the_coordinator_beats_too() -> None:
    """Towards members and those who have not joined yet."""

    async def scene() -> None:
        async with running(heartbeat_s=0.05) as job:
            for peer in (await job.member(0), await job.connect()):
                decoder, found = Decoder(), 0
                while found < 3:
                    found += decoder.feed(await peer.reader.read(65536)).count(Heartbeat())

    bounded(scene)


def test_control_connections_use_tls_and_beacons_do_not(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    cert.write_text(CERTIFICATE)
    key.write_text(KEY)

    async def scene() -> None:
        async with running(tls_cert=str(cert), tls_key=str(key), tls_ca=str(cert)) as job:
            first, _, _ = await job.members()
            assert first.writer.get_extra_info("ssl_object").version() == "TLSv1.3"
            beacon = await job.connect("worker", 0, "beacon")
            assert beacon.writer.get_extra_info("ssl_object") is None
            first.send(Declare(1, [spec("empty", (0,))], [0]))
            assert len((await first.get(Declared)).tensors) == 1

    bounded(scene)


def test_who_has_not_come_in_time_ends_the_job() -> None:
    async def scene() -> None:
        async with running(join_timeout_s=0.2) as job:
            peer = await job.member(1)
            assert "it waited for worker rank 0 and 1 of 1 servers" in (await peer.get(JoinRefused)).reason
            assert await job.exit_code == 1

    bounded(scene)


def test_the_port_of_a_killed_coordinator_can_be_taken_again_at_once() -> None:
    async def scene() -> None:
        async with running() as job:
            await job.members()
            _, port = await job.address()
            job.exit_code.cancel()
            await asyncio.wait({job.exit_code})
            async with running(port=port) as again:
                assert (await again.address())[1] == port
                assert len(await again.members()) == 3

    bounded(scene)


def test_without_a_token_only_loopback_is_served() -> None:
    config = Config(role="coordinator", bind_host="0.0.0.0")
    with pytest.raises(ConfigError, match="without a token"):
        asyncio.run(serve(config, ready=lambda host, port: None))


def test_ready_tells_an_address_that_works_over_ipv6() -> None:
    async def scene() -> None:
        told: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
        config = Config(role="coordinator", bind_host="::1", size=1, num_servers=1)
        task = asyncio.create_task(serve(config, ready=lambda *it: told.put_nowait(it)))
        host, port = await told.get()
        assert host == "::1"
        network.connect(host, port, 5).close()
        task.cancel()
        await asyncio.wait({task})

    if not socket.has_ipv6 or "::1" not in network.interfaces().get("lo", ()):
        pytest.skip("this host has no IPv6 loopback address")
    bounded(scene)
