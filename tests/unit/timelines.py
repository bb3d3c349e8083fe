"""Hand-made recordings, and timelines as plain JSON."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from byteps.trace.chrome import convert
from byteps.trace.clock import Reading
from byteps.trace.events import ARRIVED, PUSHED, PUSHING, QUEUED, RETURNED, SUMMED, Event, pack
from byteps.trace.spool import Batch, Head, Mark, Names, Record, Spool

MS = 1_000_000
"""Nanoseconds in a millisecond."""
START_NS = 5_000 * MS
"""When hand-made recordings begin, by their own clock."""
NAMES = [(1, "gradient.first"), (2, "gradient.second")]


def at(milliseconds: float) -> int:
    """A moment of the recording's own clock."""
    return START_NS + round(milliseconds * MS)


def round_trip(
    times_ms: Sequence[float], tensor: int = 1, partition: int = 0, number: int = 1, nbytes: int = 1000
) -> list[Event]:
    """What a worker records of a partition: queued, pushing, pushed, returned."""
    kinds = (QUEUED, PUSHING, PUSHED, RETURNED)
    return [
        (at(time), kind, tensor, partition, number, 0, nbytes)
        for time, kind in zip(times_ms, kinds, strict=False)
    ]


def summing(
    times_ms: Sequence[float], ranks: Sequence[int], tensor: int = 1, partition: int = 0, number: int = 1
) -> list[Event]:
    """What a server records of a partition: contributions complete, in order."""
    kinds = [ARRIVED] * (len(ranks) - 1) + [SUMMED]
    return [
        (at(time), kind, tensor, partition, number, rank, 1000)
        for time, kind, rank in zip(times_ms, kinds, ranks, strict=True)
    ]


def ready(time_ms: float, name: str = "gradient.first") -> Mark:
    return at(time_ms), at(time_ms), "ready", name, 77


def spanned(kind: str, begin_ms: float, end_ms: float, name: str = "", thread: int = 77) -> Mark:
    return at(begin_ms), at(end_ms), kind, name, thread


@dataclass
class Recording:
    """One process's recording; ``offset_ns``: the coordinator's clock minus its own."""

    role: str = "worker"
    number: int = 0
    events: Sequence[Event] = ()
    marks: Sequence[Mark] = ()
    offset_ns: int = 10_000_000 * MS
    host: str = "here"
    readings: Sequence[Reading] | None = None
    more: list[Record] = field(default_factory=list)

    def spool(self, path: Path) -> Path:
        spool = Spool(path)
        spool.begin(Head(self.role, self.number, 2, self.host, 1234, START_NS, True))
        readings = [Reading(START_NS, self.offset_ns, 1000)] if self.readings is None else self.readings
        batch = Batch(b"".join(map(pack, self.events)), list(self.marks), 0)
        spool.write(Names(NAMES), *readings, batch, *self.more)
        spool.close()
        return path

    def timeline(self, path: Path) -> Path:
        """The file that its process would have written."""
        convert(self.spool(path.with_suffix(".part")), path)
        return path


def load(path: Path) -> list[dict[str, Any]]:
    """The events of a timeline, read as any viewer would."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        events: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return events


def described(path: Path) -> dict[str, Any]:
    """What a timeline says about itself."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        description: dict[str, Any] = json.load(file)["otherData"]["byteps"]
    return description


def of(events: Sequence[dict[str, Any]], **fields: Any) -> list[dict[str, Any]]:
    """The events that have these values."""
    return [e for e in events if all(e.get(name) == value for name, value in fields.items())]
