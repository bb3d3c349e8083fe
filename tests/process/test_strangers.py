"""Who does not belong to the job is refused soon and in one line; the training beside it notices nothing."""

from __future__ import annotations

import os
import resource
import selectors
import socket
import statistics
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from byteps.config import parse_address
from byteps.errors import HandshakeError
from byteps.network import connect
from byteps.security import Identity, connect_steps, handshake

from .faults import FaultyJob

DEADLINE_S, SLACK_S = 5.0, 1.0
SLOW = 500
"""Handshakes at once that never end, per port."""

PREFIX = struct.Struct("!4sB3x")  # of each frame of the handshake
GARBAGE = (
    b"GET / HTTP/1.1\r\n\r\n",
    b"\xff" * 64,
    os.urandom(4096),
    PREFIX.pack(b"BPSh", 1) + b"\xff" * 4096,
)
OTHER_VERSION = PREFIX.pack(b"BPSh", 99) + bytes(200)
CROWD = len(GARBAGE) + 1 + 2 + SLOW
"""Strangers per port that are to be told of in the log."""

LISTENING = "0A"
"""In /proc/net/tcp."""

GROWTH_BYTES = 64 << 20


@pytest.fixture(autouse=True)
def _many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def ports(job: FaultyJob) -> dict[str, int]:
    """Where the coordinator and server 0 listen."""
    folder = Path(f"/proc/{job.processes['server 0'].popen.pid}")
    own = {os.readlink(fd) for fd in (folder / "fd").iterdir()}
    rows = [row.split() for row in (folder / "net/tcp").read_text().splitlines()[1:]]
    (port,) = [int(row[1][-4:], 16) for row in rows if row[3] == LISTENING and f"socket:[{row[9]}]" in own]
    return {"coordinator": parse_address(job.address)[1], "server 0": port}


def scan(port: int) -> None:
    """Connect and close; politely, then rudely."""
    for linger in (struct.pack("ii", 0, 0), struct.pack("ii", 1, 0)):
        with socket.create_connection(("127.0.0.1", port)) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)


def prove(port: int, purpose: str, token: str) -> None:
    """Try to be let in with this token."""
    identity = Identity(role="worker", number=0, purpose=purpose, epoch=1)
    with connect("127.0.0.1", port, DEADLINE_S) as sock, pytest.raises(HandshakeError, match="token"):
        handshake(sock, connect_steps(token.encode(), identity))


def crowd(port: int, stack: ExitStack) -> list[socket.socket]:
    """Those that speak nonsense, and many that say nothing, or begin well and then say nothing."""
    first_words = [*GARBAGE, OTHER_VERSION, *(b"" if n % 2 else PREFIX.pack(b"BPSh", 1) for n in range(SLOW))]
    found = []
    for words in first_words:
        sock = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        sock.sendall(words)
        found.append(sock)
    return found


def hung_up(socks: Sequence[socket.socket], until_s: float) -> int:
    """How many of the connections the other end has closed by then."""
    count = 0
    with selectors.DefaultSelector() as selector:
        for sock in socks:
            selector.register(sock, selectors.EVENT_READ)
        while selector.get_map() and (left_s := until_s - time.monotonic()) > 0:
            for key, _ in selector.select(left_s):
                data = b""
                with suppress(ConnectionError):
                    data = key.fileobj.recv(4096)  # type: ignore[union-attr]
                if not data:
                    selector.unregister(key.fileobj)
                    count += 1
    return count


def attack(job: FaultyJob) -> None:
    """All kinds of strangers at once, at the coordinator's and at a server's port."""
    with ExitStack() as stack:
        socks = []
        began_s = time.monotonic()
        for name, port in ports(job).items():
            socks += crowd(port, stack)
            scan(port)
            for token in ("", "wrong"):
                prove(port, "control" if name == "coordinator" else "data", token)
        took_s = time.monotonic() - began_s
        assert hung_up(socks, began_s + took_s + DEADLINE_S + SLACK_S) == len(socks)


def resident_bytes(job: FaultyJob) -> dict[str, int]:
    """Memory of the processes that strangers reach."""
    page = resource.getpagesize()
    files = {name: Path(f"/proc/{job.processes[name].popen.pid}/statm") for name in ports(job)}
    return {name: int(file.read_text().split()[1]) * page for name, file in files.items()}


def refusals(errors: str) -> list[str]:
    """What a process says about strangers."""
    return [line for line in errors.splitlines() if "turned a connection away" in line]


@pytest.mark.slow
def test_training_goes_on_beside_strangers() -> None:
    with FaultyJob() as job:
        job.start_roles()
        for rank in range(2):
            job.start_worker(rank, "steady")
        job.await_text(r"(rate \d+\s+){4}")
        before = resident_bytes(job)
        quiet = job.processes["worker 0"].numbers("rate")
        attack(job)
        rates = job.processes["worker 0"].numbers("rate")
        grown = {name: size - before[name] for name, size in resident_bytes(job).items()}
        job.send("worker 1", "leave")
        ended = job.ends(time.monotonic() + 10)
    for name, end in ended.items():
        assert (end.code, end.complaints) == (0, []), f"{name}: {end}"
        expected = CROWD if name in grown else 0
        assert len(refusals(end.errors)) == expected, f"{name}: {end}"
    assert max(grown.values()) < GROWTH_BYTES
    assert len(rates) - len(quiet) >= 5
    assert statistics.median(rates[len(quiet) :]) > 0.3 * statistics.median(quiet[1:]), (quiet, rates)


@pytest.mark.slow
def test_a_job_starts_beside_strangers() -> None:
    with FaultyJob() as job, ExitStack() as stack:
        job.start_roles()
        job.await_joined("server 0", "server 1")
        socks = [sock for port in ports(job).values() for sock in crowd(port, stack)]
        began_s = time.monotonic()
        for rank in range(2):
            job.start_worker(rank, "barrier")
        job.await_text("ready")
        started_s = time.monotonic() - began_s
        assert hung_up(socks, began_s + DEADLINE_S + SLACK_S) == len(socks)
        ended = job.ends(time.monotonic() + 10)
    assert started_s < DEADLINE_S - 1, "the strangers still held their connections"
    for name, end in ended.items():
        assert (end.code, end.complaints) == (0, []), f"{name}: {end}"
