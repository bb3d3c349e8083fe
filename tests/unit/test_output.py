"""The launcher's output: lines, progress bars, terminals and readers that go away."""

from __future__ import annotations

import os
import pty
import tempfile
import threading
from collections.abc import Callable, Sequence

import pytest

from byteps.launch.output import LONGEST_LINE_BYTES, Console, Stream


def _forward(pieces: Sequence[bytes], console_fd: int, colour: bool = False) -> None:
    """Send pieces through a stream named "w", each read by itself, and end it."""
    reader, writer = os.pipe()
    console = Console(console_fd, colour=colour)
    stream = Stream(reader, console, console.prefix("w", 0))
    for piece in pieces:
        os.write(writer, piece)
        while stream.pump():
            pass
    os.close(writer)
    stream.drain()
    stream.close()


def _captured(pieces: Sequence[bytes]) -> bytes:
    """What comes out where the launcher's output is no terminal."""
    with tempfile.TemporaryFile() as file:
        _forward(pieces, file.fileno())
        file.seek(0)
        return file.read()


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([b"one\ntw", b"o\n"], b"[w] one\n[w] two\n"),
        ([b"no end"], b"[w] no end\n"),
        ([b"\n\n"], b"[w] \n[w] \n"),
        ([b"dos\r", b"\nnext\r\n"], b"[w] dos\r\n[w] next\r\n"),
        ([b"\r10%", b"\r20%", b"\r30%\nend\n"], b"[w] 10%\r[w] 20%\r[w] 30%\n[w] end\n"),
        ([b"10%\r", b"20%\r"], b"[w] 10%\r[w] 20%\n"),
        ([b"\xff\xfe\n"], b"[w] \xff\xfe\n"),
        ([], b""),
    ],
)
def test_lines_get_their_prefix(pieces: list[bytes], expected: bytes) -> None:
    assert _captured(pieces) == expected


def test_a_line_without_end_is_cut() -> None:
    piece = b"x" * 50_000
    output = _captured([piece] * 30)
    assert output.replace(b"\n", b"").replace(b"[w] ", b"") == piece * 30
    assert max(len(line) for line in output.splitlines()) <= LONGEST_LINE_BYTES + 200_000


def _on_terminal(work: Callable[[int], None]) -> bytes:
    """What a terminal gets to see."""
    master, slave = pty.openpty()
    work(slave)
    os.close(slave)
    seen = b""
    try:
        while data := os.read(master, 4096):
            seen += data
    except OSError:
        pass  # how Linux says that the other side is closed
    os.close(master)
    return seen


def test_a_terminal_gets_colours_and_clean_lines() -> None:
    seen = _on_terminal(lambda fd: _forward([b"long line\n", b"\rshort"], fd, colour=True))
    name = b"\x1b[36m[w]\x1b[0m "
    assert seen.startswith(name + b"long line\x1b[K\r\n" + name + b"short\x1b[K\r")
    assert seen.endswith(name + b"short\x1b[K\r\n")
    assert b"\x1b[36m" not in _on_terminal(lambda fd: _forward([b"line\n"], fd))


def test_a_progress_bar_on_a_terminal_is_shown_as_it_is_now() -> None:
    seen: list[bytes] = []

    def work(fd: int) -> None:
        reader, writer = os.pipe()
        console = Console(fd, colour=False)
        stream = Stream(reader, console, console.prefix("w", 0))
        os.write(writer, b"\r1/9")
        stream.pump()
        os.write(fd, b"now")
        os.write(writer, b"\r2/9\n")
        os.close(writer)
        stream.drain()

    seen.append(_on_terminal(work))
    assert seen == [b"[w] 1/9\x1b[K\rnow[w] 1/9\x1b[K\r[w] 2/9\x1b[K\r\n"]


def test_a_reader_that_goes_away_is_noticed_once() -> None:
    reader, writer = os.pipe()
    console = Console(writer)
    os.close(reader)
    console.write(b"line\n")
    assert console.broken
    console.write(b"line\n")
    os.close(writer)


def test_a_slow_reader_that_wants_no_blocking_gets_all() -> None:
    """The shell may have left the launcher's stdout in non-blocking mode."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    data = b"x" * (1 << 20)
    received = bytearray()

    def read() -> None:
        while len(received) < len(data):
            received.extend(os.read(reader, 1 << 16))

    thread = threading.Thread(target=read)
    thread.start()
    Console(writer).write(data)
    thread.join(30)
    assert bytes(received) == data
    os.close(reader)
    os.close(writer)
