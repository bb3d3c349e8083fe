"""The handshake between good, bad, slow and strange peers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps.errors import HandshakeError
from byteps.network import listen
from byteps.security import (
    Identity,
    Steps,
    accept_steps,
    async_handshake,
    connect_steps,
    handshake,
)
from byteps.security.steps import VERSION

TOKEN = b"correct horse"
WORKER = Identity(role="worker", number=3, job_id="job", purpose="data", lane=2, epoch=7)
SERVER = Identity(role="server", number=1, job_id="job", purpose="data", epoch=7)
SHORT_S = 0.3
Driver = Callable[[socket.socket, Steps, float], Identity]


def asynchronous(sock: socket.socket, steps: Steps, deadline_s: float) -> Identity:
    async def run() -> Identity:
        return await async_handshake(asyncio.get_running_loop(), sock, steps, deadline_s)

    sock.setblocking(False)
    try:
        return asyncio.run(run())
    finally:
        sock.setblocking(True)


DRIVERS: list[Driver] = [handshake, asynchronous]


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of one TCP connection."""
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()) as client:
        server, _ = listener.accept()
        with server:
            yield client, server


def outcome(driver: Driver, sock: socket.socket, steps: Steps, deadline_s: float = 5.0) -> Identity | str:
    """The peer's identity, or the error's text with the connection closed."""
    try:
        return driver(sock, steps, deadline_s)
    except HandshakeError as error:
        sock.close()
        return str(error)


def meet(
    ends: tuple[socket.socket, socket.socket], connector: Steps, acceptor: Steps, driver: Driver = handshake
) -> tuple[Identity | str, Identity | str]:
    """Run both ends; return what the connector and what the acceptor got."""
    result: Future[Identity | str] = Future()
    thread = threading.Thread(target=lambda: result.set_result(outcome(driver, ends[1], acceptor)))
    thread.start()
    connected = outcome(driver, ends[0], connector)
    thread.join(10)
    return connected, result.result(0)


# Good peers


@pytest.mark.parametrize("token", [TOKEN, b""])
@pytest.mark.parametrize("driver", DRIVERS)
def test_both_ends_learn_who_the_other_is(
    ends: tuple[socket.socket, socket.socket], driver: Driver, token: bytes
) -> None:
    assert meet(ends, connect_steps(token, WORKER), accept_steps(token, SERVER), driver) == (SERVER, WORKER)
    # Not a byte of what follows was taken.
    ends[0].sendall(b"after")
    assert ends[1].recv(5) == b"after"
    assert ends[0].gettimeout() is None


@pytest.mark.parametrize("driver", DRIVERS)
def test_bytes_sent_right_behind_stay_in_the_socket(
    ends: tuple[socket.socket, socket.socket], driver: Driver
) -> None:
    def steps() -> Steps:
        peer = yield from accept_steps(TOKEN, SERVER)
        yield b"at once"
        return peer

    assert meet(ends, connect_steps(TOKEN, WORKER), steps(), driver)[0] == SERVER
    assert ends[0].recv(100) == b"at once"


@pytest.mark.parametrize("number", [-1, 0, 2**31 - 1])
def test_identities_travel_in_full(ends: tuple[socket.socket, socket.socket], number: int) -> None:
    worker = Identity(role="worker", number=number, job_id="ä" * 32, lane=2**32 - 1, epoch=2**64 - 1)
    coordinator = Identity(role="coordinator", job_id="ä" * 32)
    assert meet(ends, connect_steps(TOKEN, worker), accept_steps(TOKEN, coordinator)) == (coordinator, worker)


def test_a_byte_at_a_time_is_enough() -> None:
    """The drivers' reads may end anywhere."""
    left, right = socket.socketpair()
    forward, backward = socket.socketpair()

    def relay(source: socket.socket, target: socket.socket) -> None:
        while byte := source.recv(1):
            target.sendall(byte)

    with left, right, forward, backward:
        threads = [threading.Thread(target=relay, args=pair) for pair in ((right, forward), (forward, right))]
        for thread in threads:
            thread.start()
        pair = meet((left, backward), connect_steps(TOKEN, WORKER), accept_steps(TOKEN, SERVER))
        left.shutdown(socket.SHUT_RDWR)
        backward.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join(5)
    assert pair == (SERVER, WORKER)


# Peers that do not belong here


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize(
    ("connector", "acceptor", "connector_says", "acceptor_says"),
    [
        (b"wrong", TOKEN, "token of the server 1 is not", "token of the worker 3 is not"),
        (b"", TOKEN, "server 1 has a token and this process has none", "the worker 3 has none"),
        (TOKEN, b"", "the server 1 has none", "worker 3 has a token and this process has none"),
    ],
)
def test_another_token(
    ends: tuple[socket.socket, socket.socket],
    driver: Driver,
    connector: bytes,
    acceptor: bytes,
    connector_says: str,
    acceptor_says: str,
) -> None:
    def never(peer: Identity) -> str:
        raise AssertionError(f"asked about the stranger {peer}")

    got = meet(ends, connect_steps(connector, WORKER), accept_steps(acceptor, SERVER, never), driver)
    for text, expected in zip(got, (connector_says, acceptor_says), strict=True):
        assert isinstance(text, str)
        assert expected in text
        assert "BYTEPS_AUTH_TOKEN" in text


@pytest.mark.parametrize(
    ("identity", "expected"),
    [
        (Identity(role="worker", job_id="other", purpose="data"), "belongs to job 'other', not 'job'"),
        (Identity(role="worker", job_id="job", purpose="control"), "wants a control connection"),
        (Identity(role="worker", job_id="job", purpose="data", tls=True), "worker uses TLS and the server"),
    ],
)
def test_another_job_purpose_or_encryption(
    ends: tuple[socket.socket, socket.socket], identity: Identity, expected: str
) -> None:
    for text in meet(ends, connect_steps(TOKEN, identity), accept_steps(TOKEN, SERVER)):
        assert isinstance(text, str)
        assert expected in text


def test_the_acceptor_may_refuse_in_words(ends: tuple[socket.socket, socket.socket]) -> None:
    asked = []

    def check(peer: Identity) -> str:
        asked.append(peer)
        return "rank 3 is already here " + "é" * 200

    got = meet(ends, connect_steps(TOKEN, WORKER), accept_steps(TOKEN, SERVER, check))
    assert asked == [WORKER]
    assert all(isinstance(text, str) and "rank 3 is already here" in text for text in got)


def test_another_version_is_named_at_both_ends(ends: tuple[socket.socket, socket.socket]) -> None:
    def other_version() -> Steps:
        """A connector of the next version, whose frames beyond the prefix nobody knows."""
        yield struct.pack("!4sB3x", b"BPSh", VERSION + 1) + b"?" * 300
        magic, version = struct.unpack("!4sB3x", (yield 8))
        raise HandshakeError(f"{magic} {version}")

    connected, accepted = meet(ends, other_version(), accept_steps(TOKEN, SERVER))
    assert isinstance(connected, str)
    assert f"b'BPSh' {VERSION}" in connected
    assert isinstance(accepted, str)
    assert f"version {VERSION + 1}" in accepted
    assert "same byteps" in accepted


# Tampering


def run_pair(
    connector: Steps, acceptor: Steps, alter: Callable[[int, bytes], bytes]
) -> tuple[Identity | str, Identity | str]:
    """Run both ends without sockets, passing every write through ``alter(number of the write, bytes)``."""
    ends = [connector, acceptor]
    inbox = [b"", b""]
    wants: list[int | bytes] = [next(connector), next(acceptor)]
    results: list[Identity | str | None] = [None, None]
    writes = 0
    progress = True
    while progress:
        progress = False
        for me in (0, 1):
            while results[me] is None:
                want, answer = wants[me], b""
                if isinstance(want, bytes):
                    inbox[1 - me] += alter(writes, want)
                    writes += 1
                elif len(inbox[me]) >= want:
                    answer, inbox[me] = inbox[me][:want], inbox[me][want:]
                else:
                    break
                progress = True
                try:
                    wants[me] = ends[me].send(answer)
                except StopIteration as stop:
                    results[me] = stop.value
                except HandshakeError as error:
                    results[me] = str(error)
    first, second = (result if result is not None else "the peer went silent" for result in results)
    return first, second


@given(write=st.integers(0, 2), position=st.integers(0, 10_000), flip=st.integers(1, 255))
def test_any_changed_byte_before_the_verdict_is_noticed(write: int, position: int, flip: int) -> None:
    def alter(number: int, frame: bytes) -> bytes:
        if number != write:
            return frame
        at = position % len(frame)
        # The prefix's padding means nothing yet: a later version may use it.
        return frame if at in (5, 6, 7) else frame[:at] + bytes([frame[at] ^ flip]) + frame[at + 1 :]

    clean = run_pair(connect_steps(TOKEN, WORKER), accept_steps(TOKEN, SERVER), lambda _, frame: frame)
    assert clean == (SERVER, WORKER)
    touched: list[bool] = []

    def watched(number: int, frame: bytes) -> bytes:
        changed = alter(number, frame)
        touched.append(changed != frame)
        return changed

    got = run_pair(connect_steps(TOKEN, WORKER), accept_steps(TOKEN, SERVER), watched)
    assert [isinstance(result, str) for result in got] == [any(touched)] * 2


def test_a_recorded_connector_cannot_be_replayed() -> None:
    recorded: list[bytes] = []

    def record(_: int, frame: bytes) -> bytes:
        recorded.append(frame)
        return frame

    assert run_pair(connect_steps(TOKEN, WORKER), accept_steps(TOKEN, SERVER), record)[1] == WORKER

    def replay() -> Steps:
        yield recorded[0]
        yield len(recorded[1])
        yield recorded[2]
        yield 1
        return WORKER

    got = run_pair(replay(), accept_steps(TOKEN, SERVER), lambda _, frame: frame)[1]
    assert isinstance(got, str)
    assert "token" in got


def test_an_acceptor_cannot_be_reflected() -> None:
    """Sending the peer's own frames back proves nothing."""

    def mirror() -> Steps:
        hello = yield 8 + 117
        yield hello + bytes(32)
        proof = yield 40
        yield proof
        return SERVER

    got = run_pair(connect_steps(TOKEN, WORKER), mirror(), lambda _, frame: frame)[0]
    assert isinstance(got, str)
    assert "token" in got


@given(garbage=st.binary(max_size=600), from_connector=st.booleans())
def test_garbage_is_one_handshake_error(garbage: bytes, from_connector: bool) -> None:
    """Whatever comes, an end asks for little, and stops with an error or waits for more."""
    steps = accept_steps(TOKEN, SERVER) if from_connector else connect_steps(TOKEN, WORKER)
    # Half of the time beyond the prefix, which random bytes would not get past.
    stream = struct.pack("!4sB3x", b"BPSh", VERSION) + garbage if len(garbage) % 2 else garbage
    want = next(steps)
    with contextlib.suppress(HandshakeError):
        while isinstance(want, bytes) or len(stream) >= want:
            answer = b""
            if isinstance(want, int):
                answer, stream = stream[:want], stream[want:]
            want = steps.send(answer)
            assert isinstance(want, bytes) or want <= 256


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"])
def test_a_stranger_is_told_apart(
    ends: tuple[socket.socket, socket.socket], driver: Driver, sent: bytes
) -> None:
    ends[0].sendall(sent)
    got = outcome(driver, ends[1], accept_steps(TOKEN, SERVER))
    assert isinstance(got, str)
    assert "does not speak the protocol of byteps" in got
    assert "127.0.0.1:" in got


# Slow and vanishing peers


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("steps", [connect_steps, accept_steps])
def test_a_silent_peer_is_given_up(driver: Driver, steps: Callable[[bytes, Identity], Steps]) -> None:
    left, right = socket.socketpair()
    with left, right:
        got = outcome(driver, left, steps(TOKEN, WORKER), SHORT_S)
    assert isinstance(got, str)
    assert f"not finished within {SHORT_S:g} s" in got


@pytest.mark.parametrize("driver", DRIVERS)
def test_the_deadline_is_for_the_whole_and_not_per_read(
    ends: tuple[socket.socket, socket.socket], driver: Driver
) -> None:
    done = threading.Event()

    def dribble() -> None:
        """Send a good start a byte at a time, each well within the deadline."""
        for byte in struct.pack("!4sB3x", b"BPSh", VERSION) + bytes(117):
            if done.wait(SHORT_S / 5):
                return
            ends[0].sendall(bytes([byte]))

    thread = threading.Thread(target=dribble)
    thread.start()
    begin = time.monotonic()
    try:
        got = outcome(driver, ends[1], accept_steps(TOKEN, SERVER), SHORT_S)
    finally:
        done.set()
        thread.join(5)
    assert isinstance(got, str)
    assert "not finished" in got
    assert SHORT_S * 0.9 <= time.monotonic() - begin < SHORT_S * 10


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("sent", [b"", b"BPSh", struct.pack("!4sB3x", b"BPSh", VERSION)])
def test_a_peer_that_hangs_up_is_named(
    ends: tuple[socket.socket, socket.socket], driver: Driver, sent: bytes
) -> None:
    ends[0].sendall(sent)
    ends[0].close()
    got = outcome(driver, ends[1], accept_steps(TOKEN, SERVER))
    assert isinstance(got, str)
    assert "closed the connection" in got


def test_a_blocking_socket_keeps_its_timeout(ends: tuple[socket.socket, socket.socket]) -> None:
    ends[0].settimeout(17)
    assert meet(ends, connect_steps(TOKEN, WORKER), accept_steps(TOKEN, SERVER)) == (SERVER, WORKER)
    assert ends[0].gettimeout() == 17


def test_identities_are_checked_where_they_are_made() -> None:
    with pytest.raises(ValueError, match="scheduler"):
        Identity(role="scheduler")
    with pytest.raises(ValueError, match="64 bytes"):
        Identity(role="worker", job_id="ä" * 33)
    assert str(WORKER) == "worker 3"
    assert str(Identity(role="worker")) == "worker"
