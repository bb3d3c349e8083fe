"""What timelines tell, as objects: partitions, waits and steps of each rank, and the servers' sums."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from byteps.trace.reading import Timeline, split_time


@dataclass(slots=True)
class Partition:
    """One partition in one round at one rank; times in microseconds.

    Attributes:
        rank: whose.
        tensor: the user's name.
        round: from 1.
        nbytes: size.
        server: its number.
        ready, queued, pushing, pushed, returned: when it became so; "pushing" is its first byte.
        summed: when the server had all contributions; None where its timeline was not given.
    """

    rank: int
    tensor: str
    round: int
    nbytes: int
    server: int
    ready: float
    queued: float = 0.0
    pushing: float = 0.0
    pushed: float = 0.0
    returned: float = 0.0
    summed: float | None = None


@dataclass(slots=True)
class Wait:
    """A thread waited for a result; times in microseconds."""

    tensor: str
    thread: int
    begin: float
    end: float


@dataclass(slots=True)
class Step:
    """The optimizer's step, which ends a training step; times in microseconds."""

    thread: int
    begin: float
    end: float


@dataclass(slots=True)
class RankHistory:
    """What one worker did."""

    rank: int
    partitions: list[Partition] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)


@dataclass(slots=True)
class Sum:
    """A server had all contributions to a partition; times in microseconds."""

    server: int
    begin: float
    end: float
    first: int
    last: int


@dataclass(slots=True)
class History:
    """A whole job, or the part of it whose timelines were given."""

    ranks: list[RankHistory]
    servers: list[int]
    sums: list[Sum]


class _Line(msgspec.Struct):
    """What is used of a line, without its time."""

    ph: str
    pid: int
    name: str = ""
    cat: str = ""
    id: str = ""
    tid: int = 0
    dur: float = 0.0
    args: dict[str, Any] = {}


def read_history(timelines: Sequence[Timeline]) -> History:
    """Read timelines to their ends, on one clock.

    Raises:
        OSError: a file cannot be read.
    """
    reader = _Reader([process for timeline in timelines for process in timeline.processes])
    start_wall_ns = min(timeline.start_wall_ns for timeline in timelines)
    for timeline in timelines:
        reader.read(timeline.lines, (timeline.start_wall_ns - start_wall_ns) / 1000)
    return reader.history()


class _Reader:
    def __init__(self, processes: Sequence[dict[str, Any]]) -> None:
        self._ranks = {p["pid"]: RankHistory(p["number"]) for p in processes if p["role"] == "worker"}
        self._servers = {p["pid"]: int(p["number"]) for p in processes if p["role"] == "server"}
        self._decoder = msgspec.json.Decoder(_Line)
        self._open: dict[str, tuple[Partition, int]] = {}
        self._sums: dict[str, Sum] = {}  # by tensor, partition and round
        self._returned: list[tuple[str, Partition]] = []

    def read(self, lines: Iterable[str], later_us: float) -> None:
        for line in lines:
            at, rest = split_time(line)
            try:
                event = self._decoder.decode("{" + rest[1:])
            except msgspec.MsgspecError:
                continue
            self._add(at + later_us, event)

    def history(self) -> History:
        for identity, partition in self._returned:
            summed = self._sums.get(identity)
            if summed is not None:
                partition.summed = summed.end
        ranks = sorted(self._ranks.values(), key=lambda rank: rank.rank)
        for rank in ranks:
            rank.steps.sort(key=lambda step: step.end)
            rank.partitions.sort(key=lambda partition: partition.returned)
        return History(ranks, sorted(self._servers.values()), list(self._sums.values()))

    def _add(self, at: float, event: _Line) -> None:
        if event.ph == "X" and event.pid in self._ranks:
            rank = self._ranks[event.pid]
            if event.cat == "waiting":
                rank.waits.append(Wait(str(event.args.get("tensor")), event.tid, at, at + event.dur))
            elif event.cat == "step":
                rank.steps.append(Step(event.tid, at, at + event.dur))
        elif event.ph in "be" and event.cat == "byteps":
            if event.pid in self._servers:
                self._add_sum(at, event, self._servers[event.pid])
            elif event.pid in self._ranks:
                self._add_stage(at, event, self._ranks[event.pid])

    def _add_sum(self, at: float, event: _Line, server: int) -> None:
        identity = event.id.partition(".")[2]
        if event.ph == "b" and "first" in event.args:
            self._sums[identity] = Sum(server, at, at, event.args["first"], event.args["last"])
        elif event.ph == "e" and identity in self._sums:
            self._sums[identity].end = at

    def _add_stage(self, at: float, event: _Line, rank: RankHistory) -> None:
        """A partition's own event holds those of its stages, so it ends at depth 0."""
        if event.ph == "b" and "round" in event.args:
            if "bytes" in event.args:  # else it is unfinished
                args = event.args
                partition = Partition(rank.rank, event.name, args["round"], args["bytes"], args["server"], at)
                self._open[event.id] = partition, 0
            return
        if event.id not in self._open:
            return
        partition, depth = self._open[event.id]
        depth += 1 if event.ph == "b" else -1
        self._open[event.id] = partition, depth
        if event.ph == "b":
            if event.name == "queued":
                partition.queued = at
            elif event.name == "pushed":
                partition.pushing = at
            elif event.name == "returned":
                partition.pushed = at
        elif depth < 0:
            del self._open[event.id]
            partition.returned = at
            rank.partitions.append(partition)
            self._returned.append((event.id.partition(".")[2], partition))
