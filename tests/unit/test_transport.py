"""Worker and server agree on a transport: with good, strange and failing peers."""

from __future__ import annotations

import asyncio
import errno
import mmap
import os
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps import _native
from byteps.config import Config
from byteps.errors import HandshakeError
from byteps.network import listen
from byteps.security import Identity, connect_steps, handshake
from byteps.transport import Library, Meeting, meet_server, meet_worker
from byteps.transport.meeting import Answer, Offer, Settled, allowed, hear, say
from byteps.transport.memory import Window, hand_over

WORKER = Identity(role="worker", number=3, purpose="data", lane=1, epoch=7)
SERVER = Identity(role="server", number=1, purpose="data", epoch=7)
LIMIT_S = 5.0
Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """A worker's and a server's end of one TCP connection."""
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()) as worker:
        server, _ = listener.accept()
        with server:
            yield worker, server


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """No descriptor stays open."""
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) == before


def config(transport: str, token: str = "secret") -> Config:
    return Config(transport=transport, auth_token=token)


def native_server() -> _native.Server:
    return _native.Server(4, 2, deterministic=False, heartbeat_s=1.0, epoch=7)


def served(
    sock: socket.socket,
    settings: Config,
    sum_memory: Callable[[int], _native.SumMemory] | None = None,
) -> _native.Link:
    """The server's end of a meeting."""
    sock.setblocking(False)
    return asyncio.run(meet_worker(sock, settings, SERVER, WORKER, LIMIT_S, Library(), sum_memory))


def outcome(call: Callable[[], Meeting | _native.Link]) -> str:
    try:
        result = call()
    except HandshakeError as error:
        return str(error)
    return result.transport if isinstance(result, Meeting) else "link"


def met(ends: Ends, worker: Config, server: Config) -> tuple[str, str]:
    """What comes of a meeting at both ends."""
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(outcome, lambda: served(ends[1], server))
        result = outcome(lambda: meet_server(ends[0], worker, WORKER, SERVER, LIMIT_S, Library()))
        if result not in ("shm", "tcp"):
            ends[0].close()
        return result, other.result()


@pytest.mark.parametrize(
    ("worker", "server", "expected"),
    [
        ("auto", "auto", "shm"),
        ("auto", "shm", "shm"),
        ("shm", "auto", "shm"),
        ("tcp", "auto", "tcp"),
        ("auto", "tcp", "tcp"),
        ("tcp", "tcp", "tcp"),
    ],
)
def test_two_settings_agree(nothing_left: None, ends: Ends, worker: str, server: str, expected: str) -> None:
    assert met(ends, config(worker), config(server)) == (expected, "link")
    assert allowed(worker, server)[0] == expected


def test_settings_that_contradict_each_other(ends: Ends) -> None:
    worker, server = met(ends, config("tcp"), config("shm"))
    text = "this server has transport = shm, the worker tcp; give all processes the same BYTEPS_TRANSPORT"
    assert text in worker
    assert "refused the worker 3: " + text in server


def test_a_wrong_token_at_the_window_gets_no_memory(ends: Ends) -> None:
    worker, server = met(ends, config("shm"), config("auto", token="other"))
    assert "cannot share memory" in worker
    assert "the token of the" in server


def test_a_stranger_at_the_window_is_passed_over(ends: Ends) -> None:
    with Window(b"secret", WORKER, SERVER) as window, ThreadPoolExecutor(1) as pool:
        memory = pool.submit(window.receive, ends[0], time.monotonic() + LIMIT_S)
        for token, who in ((b"guess", SERVER), (b"secret", WORKER)):
            with socket.socket(socket.AF_UNIX) as stranger:
                stranger.connect(f"\0{window.name}")
                with pytest.raises(HandshakeError):
                    handshake(stranger, connect_steps(token, who))
        there = asyncio.run(hand_over(b"secret", SERVER, WORKER, window.name, LIMIT_S))
        here = memory.result()
        assert not isinstance(here, str)
        assert [os.fstat(end.descriptors[0]).st_ino for end in (here, there)] == [
            os.fstat(there.descriptors[0]).st_ino
        ] * 2
        here.close()
        there.close()


def test_a_worker_can_read_the_memory_of_sums_and_not_change_it(nothing_left: None, ends: Ends) -> None:
    sums = native_server().sum_memory(1)
    with Window(b"secret", WORKER, SERVER) as window, ThreadPoolExecutor(1) as pool:
        memory = pool.submit(window.receive, ends[0], time.monotonic() + LIMIT_S)
        there = asyncio.run(hand_over(b"secret", SERVER, WORKER, window.name, LIMIT_S, sums))
        here = memory.result()
        assert not isinstance(here, str)
        assert os.fstat(here.descriptors[-1]).st_ino == os.fstat(sums.descriptor()).st_ino
        with pytest.raises(PermissionError):
            mmap.mmap(here.descriptors[-1], 0)
        mmap.mmap(here.descriptors[-1], 0, prot=mmap.PROT_READ).close()
        links = there.link(ends[1]), here.link(ends[0])
        assert (there.descriptors, here.descriptors) == ([], [])
        del links, sums


def test_without_memory_for_sums_the_rest_is_shared(ends: Ends) -> None:
    def refuse(lane: int) -> _native.SumMemory:
        raise OSError(errno.EFBIG, f"no memory for lane {lane}")

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(outcome, lambda: served(ends[1], config("auto"), refuse))
        meeting = meet_server(ends[0], config("auto"), WORKER, SERVER, LIMIT_S, Library())
        assert (meeting.transport, other.result()) == ("shm", "link")


@pytest.mark.parametrize("answer", [Answer("shm"), Answer("tcp", "no memory", near=True)])
def test_a_worker_that_gets_no_memory_says_why(ends: Ends, answer: Answer) -> None:
    worker, server = ends
    with ThreadPoolExecutor(1) as pool:
        meeting: Future[Meeting] = pool.submit(
            meet_server, worker, config("auto"), WORKER, SERVER, LIMIT_S, Library()
        )
        handshake(server, hear(Offer))
        handshake(server, say(answer))
        if answer.transport == "shm":
            assert handshake(server, hear(Settled)).reason
        assert meeting.result().transport == "tcp"
        assert meeting.result().reason


@pytest.mark.parametrize("setting", ["auto", "tcp"])
def test_a_server_that_hangs_up_is_an_error_at_once(ends: Ends, setting: str) -> None:
    worker, server = ends
    server.close()
    with pytest.raises(HandshakeError, match="closed the connection"):
        meet_server(worker, config(setting), WORKER, SERVER, LIMIT_S, Library())


@pytest.mark.parametrize("window", ["", "byteps-" + "0" * 32])
def test_a_worker_whose_window_cannot_be_reached_goes_on_by_tcp(ends: Ends, window: str) -> None:
    worker, server = ends
    with ThreadPoolExecutor(1) as pool:
        link = pool.submit(served, server, config("auto"))
        handshake(worker, say(Offer("auto", window)))
        answer = handshake(worker, hear(Answer))
        assert (answer.transport, answer.refused, answer.near) == ("tcp", False, False)
        link.result()


def heard(payload: bytes) -> Offer:
    """What a server takes a worker's first message for."""
    steps = hear(Offer)
    assert next(steps) == 2
    try:
        assert steps.send(len(payload).to_bytes(2, "little")) == len(payload)
        steps.send(payload)
    except StopIteration as stop:
        offer: Offer = stop.value
        return offer
    raise AssertionError("it waits for more")


@given(st.binary(max_size=300))
def test_anything_but_an_offer_is_refused(garbage: bytes) -> None:
    try:
        offer = heard(garbage)
    except HandshakeError:
        return
    assert msgspec.msgpack.decode(garbage)[0] == offer.setting


@pytest.mark.parametrize("name", ["/run/docker.sock", "byteps-" + "0" * 31, "byteps-" + "0" * 32 + "\n"])
def test_only_windows_are_visited(name: str) -> None:
    with pytest.raises(HandshakeError, match=r"it sent no Offer .* install the same byteps"):
        heard(msgspec.msgpack.encode(["auto", name, ""]))
