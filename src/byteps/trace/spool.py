"""Where a recorder keeps what it has, as it comes: a file of length-prefixed msgpack records.

Writing it costs a training process next to nothing, and what a killed process leaves can still be read.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec

from byteps.trace.clock import Reading

_LENGTH = struct.Struct("=I")
_MAGIC = b"byteps spool 1\n"
_MOST_BYTES = 1 << 30

Text: TypeAlias = Annotated[str, msgspec.Meta(max_length=4096)]


class Head(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Who recorded.

    Attributes:
        role: "worker" or "server".
        number: its rank or server number.
        size: number of workers.
        start_ns: when recording began, by the monotonic clock.
        coordinated: whether the readings are of the coordinator's clock, and not of the own one.
        first_step: number of the first step recorded.
    """

    role: Text
    number: int
    size: int
    host: Text
    pid: int
    start_ns: int
    coordinated: bool
    first_step: int = 1


class Names(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """What the numbers of tensors stand for from now on."""

    names: list[tuple[int, Text]]


Mark = tuple[int, int, str, str, int]
"""Begin and end (ns of the monotonic clock), kind, name, number of the thread."""


class Batch(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """What happened in a while. A tensor's "ready" is here or earlier when its "queued" is.

    Attributes:
        events: as ``events.unpack`` reads them.
        marks: what Python recorded.
        dropped: events that found no room.
    """

    events: bytes
    marks: list[Mark]
    dropped: int


Record: TypeAlias = Head | Names | Batch | Reading


class Spool:
    """A spool file that is being written.

    Raises:
        OSError: the file cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        self._encoder = msgspec.msgpack.Encoder()
        self._buffer = bytearray()  # of the last record; new memory for each would cost more than the record

    def write(self, *records: Record) -> None:
        """Append records.

        Raises:
            OSError: the disk is full, for example. The records before these are intact.
        """
        for record in records:
            self._append(record)

    def _append(self, record: Record) -> None:
        self._encoder.encode_into(record, self._buffer, _LENGTH.size)
        _LENGTH.pack_into(self._buffer, 0, len(self._buffer) - _LENGTH.size)
        with memoryview(self._buffer) as whole:
            done = 0
            while done < len(whole):  # at once: a forked child must not write it a second time
                done += os.write(self._fd, whole[done:])

    def begin(self, head: Head) -> None:
        """Write what every spool begins with.

        Raises:
            OSError: as ``write``.
        """
        os.write(self._fd, _MAGIC)
        self.write(head)

    @property
    def is_open(self) -> bool:
        """Whether it was not closed yet."""
        return self._fd >= 0

    def close(self) -> None:
        """Close the file, which stays."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def is_spool(path: Path) -> bool:
    """Whether a file begins as a spool does.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def read_spool(path: Path) -> Iterator[Record]:
    """The records of a spool, up to where its writer was stopped.

    Raises:
        OSError: it cannot be read.
    """
    decoder = msgspec.msgpack.Decoder(Record)
    with path.open("rb") as file:
        file.seek(len(_MAGIC))
        while len(prefix := file.read(_LENGTH.size)) == _LENGTH.size:
            (length,) = _LENGTH.unpack(prefix)
            body = file.read(length) if length <= _MOST_BYTES else b""
            if len(body) < length or not length:
                return
            try:
                yield decoder.decode(body)
            except msgspec.DecodeError:
                return
