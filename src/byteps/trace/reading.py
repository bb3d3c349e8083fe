"""Reads timelines, whole or cut off: gzipped, plain, or the spool that a killed process left."""

from __future__ import annotations

import json
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from byteps.errors import TimelineError
from byteps.trace.chrome import HEAD_BEGIN, HEAD_END, LINE_BEGIN, VERSION, convert
from byteps.trace.spool import is_spool

_CHUNK_BYTES = 1 << 10  # little is lost with the one that holds damage
_GZIP_MAGIC = b"\x1f\x8b"
_AUTO_HEADER = 32 + zlib.MAX_WBITS
_LONGEST_LINE_BYTES = 1 << 20
_PROCESS_KEYS = {"role", "number", "pid", "host", "clock"}
"""What is used of a process's description."""


@dataclass(slots=True)
class Timeline:
    """One timeline file.

    Attributes:
        path: where it was read from.
        start_wall_ns: the coordinator's wall clock at time 0, nanoseconds since the epoch.
        processes: whose events are in it, as ``chrome`` describes them.
        lines: its events, each a line of JSON without the comma. Can be read once.
        notes: what the user should know; complete when the lines are read.
    """

    path: Path
    start_wall_ns: int
    processes: list[dict[str, Any]]
    lines: Iterator[str]
    notes: list[str]


def read_timeline(path: Path) -> Timeline:
    """Open a timeline. What a killed process left of it is read as far as it goes.

    Raises:
        TimelineError: it is none.
        OSError: it cannot be read.
    """
    notes: list[str] = []
    if is_spool(path):
        notes.append(f"{path} is what a process that was killed had recorded; it is read as far as it goes")
        lines = _spooled(path)
    else:
        lines = _lines(_plain(path))
    first = next(lines, "")
    description = _description(path, first)
    return Timeline(
        path,
        int(description["start_wall_ns"]),
        list(description["processes"]),
        _events(path, lines, notes),
        notes,
    )


def split_time(line: str) -> tuple[float, str]:
    """An event's time in microseconds, and the rest of its line from the comma on."""
    comma = line.index(",")
    return float(line[len(LINE_BEGIN) : comma]), line[comma:]


def _spooled(path: Path) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "timeline.json.gz"
        try:
            convert(path, whole)
        except ValueError as error:
            raise TimelineError(f"{error}; nothing of it can be used") from error
        yield from _lines(_plain(whole))


def _plain(path: Path) -> Iterator[bytes]:
    """The bytes of a file, decompressed as far as they are intact."""
    with path.open("rb") as file:
        chunk = file.read(_CHUNK_BYTES)
        if not chunk.startswith(_GZIP_MAGIC):
            yield chunk
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk
            return
        decompressor = zlib.decompressobj(_AUTO_HEADER)
        while chunk:
            try:
                yield decompressor.decompress(chunk)
            except zlib.error:  # what follows cannot be understood; the caller misses the end
                return
            chunk = file.read(_CHUNK_BYTES)


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Whole lines without their ends; what is cut off at the end is left out."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.decode(errors="replace")
        if len(rest) > _LONGEST_LINE_BYTES:  # no timeline: it has one event a line
            return


def _description(path: Path, line: str) -> dict[str, Any]:
    refusal = f"{path} is no timeline of byteps"
    if not (line.startswith(HEAD_BEGIN) and line.endswith(HEAD_END)):
        raise TimelineError(
            f"{refusal}, or its beginning is lost; give files that BYTEPS_TIMELINE or `byteps trace merge` "
            f"made"
        )
    try:
        description = json.loads(line[len(HEAD_BEGIN) : -len(HEAD_END)])
        version = description["version"]
        if (
            version == VERSION
            and int(description["start_wall_ns"])
            and all(process.keys() >= _PROCESS_KEYS for process in description["processes"])
        ):
            return dict(description)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TimelineError(f"{refusal}: its first line cannot be understood") from error
    raise TimelineError(f"{path} is of version {version}; this byteps reads version {VERSION}")


def _events(path: Path, lines: Iterable[str], notes: list[str]) -> Iterator[str]:
    count = 0
    for line in lines:
        if line == "]}":
            return
        event = line.removesuffix(",")
        if not (event.startswith(LINE_BEGIN) and event.endswith("}")):
            if event:
                break
            continue
        count += 1
        yield event
    spool = path.with_name(path.name + ".part")
    more = f"; {spool} has the rest" if spool.exists() else ""
    notes.append(
        f"{path} ends early: its process was killed, or the disk was full; its first {count} events are "
        f"used{more}"
    )
