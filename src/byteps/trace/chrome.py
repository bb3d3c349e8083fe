"""Makes of a spool a timeline in the Chrome trace event format, gzipped, one event on each line.

Every partition of every round is an asynchronous event (``b``, ``e``) that holds those of its stages, so any
number of them may overlap. Flow arrows (``s``, ``t``, ``f``) lead from the push over the server's sum to the
result; they hang on moments (``X`` of no duration), because viewers tie them to threads only. Times are
microseconds of the coordinator's clock since ``start_wall_ns``, which the first line states.
"""

from __future__ import annotations

import gzip
import json
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from byteps.diagnostics import user_name
from byteps.trace.clock import Mapping, Reading
from byteps.trace.events import ARRIVED, PUSHED, PUSHING, QUEUED, RETURNED, SUMMED, Event, unpack
from byteps.trace.spool import Batch, Head, Mark, Names, Record, read_spool

HEAD_BEGIN = '{"displayTimeUnit":"ms","otherData":{"byteps":'
HEAD_END = '},"traceEvents":['
LINE_BEGIN = '{"ts":'
VERSION = 1

SERVER_PIDS = 1_000_000
"""Where the numbers of servers begin among the processes of a timeline; a worker's number is its rank + 1."""

_LEVEL = 3
"""Of compression: twice as fast as the usual one, a tenth larger."""

_EVENTS, _PUSHES, _RESULTS, _SUMS = 1, 2, 3, 4
_FIRST_THREAD = 10
_STAGES = ("ready", "queued", "pushed", "returned")

_Key = tuple[int, int, int]  # tensor, partition, round


@dataclass(slots=True)
class Written:
    """What a timeline holds.

    Attributes:
        partitions: rounds of partitions that are complete.
        dropped: events that found no room while recording.
    """

    partitions: int = 0
    dropped: int = 0


def convert(spool: Path, path: Path) -> Written:
    """Write the timeline of one process.

    Args:
        spool: what its recorder left.
        path: of the timeline.

    Raises:
        OSError: a file cannot be read or written.
        ValueError: the spool has no head.
    """
    records = read_spool(spool)
    head = next(records, None)
    if not isinstance(head, Head):
        raise ValueError(f"{spool} ends before it says who recorded it")
    readings = [record for record in read_spool(spool) if isinstance(record, Reading)]
    dropped = sum(record.dropped for record in read_spool(spool) if isinstance(record, Batch))
    with gzip.open(path, "wt", compresslevel=_LEVEL, encoding="utf-8") as file:
        writer = _Writer(file, head, readings, dropped)
        for record in records:
            writer.add(record)
        writer.finish()
        return Written(writer.partitions, dropped)


def header(description: dict[str, Any]) -> str:
    """The first line of a timeline."""
    return f"{HEAD_BEGIN}{json.dumps(description)}{HEAD_END}\n"


def _own_clock(head: Head) -> Reading:
    return Reading(head.start_ns, time.time_ns() - time.monotonic_ns(), 0)


class _Writer:
    """Turns records into lines.

    Args:
        file: gets the lines.
        head: who recorded.
        readings: of the coordinator's clock.
        dropped: events that found no room.
    """

    def __init__(self, file: IO[str], head: Head, readings: list[Reading], dropped: int) -> None:
        self._file = file
        self._server = head.role == "server"
        self._number = head.number
        self._size = head.size
        self.pid = SERVER_PIDS + head.number if self._server else head.number + 1
        self._mapping = Mapping(readings or [_own_clock(head)])
        self._start_wall_ns = self._mapping.wall_ns(head.start_ns)
        self._names: dict[int, str] = {}
        self._titles: dict[int, str] = {}
        self._ready: dict[str, deque[int]] = {}
        self._ready_of: dict[tuple[int, int], int] = {}
        self._open: dict[_Key, list[int]] = {}
        self._rounds: dict[_Key, list[tuple[int, int]]] = {}
        self._threads: dict[int, int] = {}
        self._steps = head.first_step - 1
        self._last_ns = head.start_ns
        self.partitions = 0
        self._separator = ""
        process = {
            "role": head.role,
            "number": head.number,
            "pid": self.pid,
            "size": head.size,
            "host": head.host,
            "os_pid": head.pid,
            "clock": "coordinator" if readings and head.coordinated else "own",
            "offset_ns": self._start_wall_ns - head.start_ns,
            "uncertainty_ns": min((reading.uncertainty_ns for reading in readings), default=0),
            "readings": [[r.at_ns, r.offset_ns, r.uncertainty_ns] for r in readings],
            "dropped": dropped,
        }
        file.write(header({"version": VERSION, "start_wall_ns": self._start_wall_ns, "processes": [process]}))
        self._name_tracks(head)

    def add(self, record: Record) -> None:
        """Write what one record tells."""
        if isinstance(record, Names):
            self._names.update(record.names)
            self._titles.clear()
        elif isinstance(record, Batch):
            for mark in record.marks:
                self._mark(mark)
            add = self._server_event if self._server else self._worker_event
            for event in unpack(record.events):
                self._last_ns = max(self._last_ns, event[0])
                add(event)

    def finish(self) -> None:
        """Write what was under way, and the end."""
        for key, stages in self._open.items():
            self._partition(key, -1, 0, [*stages, max(stages[-1], self._last_ns)], unfinished=True)
        self._file.write("\n]}\n")

    def _line(self, at_ns: int, rest: str) -> None:
        ts = (self._mapping.wall_ns(at_ns) - self._start_wall_ns) / 1000
        self._file.write(f'{self._separator}{LINE_BEGIN}{ts:.3f},"pid":{self.pid},{rest}}}')
        self._separator = ",\n"

    def _name_tracks(self, head: Head) -> None:
        title = f"server {head.number}" if self._server else f"rank {head.number}"
        self._meta("process_name", _EVENTS, f"{title} ({head.host})")
        order = SERVER_PIDS + head.number if self._server else head.number
        self._line(
            head.start_ns,
            f'"tid":{_EVENTS},"ph":"M","name":"process_sort_index","args":{{"sort_index":{order}}}',
        )
        tracks = {_SUMS: "sums"} if self._server else {_PUSHES: "pushes", _RESULTS: "results"}
        for track, name in tracks.items():
            self._meta("thread_name", track, name)

    def _meta(self, kind: str, track: int, name: str) -> None:
        args = json.dumps({"name": name})
        self._line(self._last_ns, f'"tid":{track},"ph":"M","name":"{kind}","args":{args}')

    def _mark(self, mark: Mark) -> None:
        begin_ns, end_ns, kind, name, thread = mark
        self._last_ns = max(self._last_ns, end_ns)
        if kind == "ready":
            self._ready.setdefault(name, deque()).append(begin_ns)
            return
        track = self._threads.get(thread)
        if track is None:
            track = self._threads[thread] = _FIRST_THREAD + len(self._threads)
            self._meta("thread_name", track, f"training thread {track - _FIRST_THREAD}")
        args: dict[str, Any] = {}
        shown = kind
        if kind == "step":
            self._steps += 1
            shown, args = f"step {self._steps}", {"step": self._steps}
        elif name:
            shown, args = f"{kind} {user_name(name)}", {"tensor": user_name(name)}
        self._line(
            begin_ns,
            f'"tid":{track},"ph":"X","dur":{(end_ns - begin_ns) / 1000:.3f},"cat":{json.dumps(kind)},'
            f'"name":{json.dumps(shown)},"args":{json.dumps(args)}',
        )

    def _name(self, tensor: int) -> str:
        return self._names.get(tensor, f"tensor {tensor}")

    def _title(self, tensor: int) -> str:
        """The user's name of a tensor as JSON has it, without the quotes."""
        title = self._titles.get(tensor)
        if title is None:
            title = self._titles[tensor] = json.dumps(user_name(self._name(tensor)))[1:-1]
        return title

    def _ready_ns(self, tensor: int, number: int, queued_ns: int) -> int:
        """When a round's tensor was ready: at the first such mark since the round before."""
        known = self._ready_of.get((tensor, number))
        if known is not None:
            return known
        self._ready_of.pop((tensor, number - 1), None)
        marks = self._ready.get(self._name(tensor), deque())
        ready_ns = marks[0] if marks and marks[0] <= queued_ns else queued_ns
        while marks and marks[0] <= queued_ns:
            marks.popleft()
        self._ready_of[tensor, number] = ready_ns
        return ready_ns

    def _worker_event(self, event: Event) -> None:
        at_ns, kind, tensor, partition, number, server, nbytes = event
        key = (tensor, partition, number)
        if kind == QUEUED:
            self._open[key] = [self._ready_ns(tensor, number, at_ns), at_ns]
        elif kind in (PUSHING, PUSHED):
            if key in self._open:
                self._open[key].append(at_ns)
        elif kind == RETURNED:
            stages = self._open.pop(key, [])
            if len(stages) == len(_STAGES):  # else its begin was not recorded
                self.partitions += 1
                self._partition(key, server, nbytes, [*stages, at_ns])
                self._moment(_PUSHES, stages[-1], "pushed", key[0])
                self._arrow("s", _PUSHES, stages[-1], key, self._number)
                self._moment(_RESULTS, at_ns, "returned", key[0])
                self._arrow("f", _RESULTS, at_ns, key, self._number)

    def _partition(
        self, key: _Key, server: int, nbytes: int, times: list[int], *, unfinished: bool = False
    ) -> None:
        """The asynchronous events of a partition at a worker; ``times`` begins with "ready"."""
        title = self._title(key[0])
        more = '"unfinished":true' if unfinished else f'"bytes":{nbytes},"server":{server}'
        with_id = self._id(key)
        self._begin(times[0], with_id, title, f'"partition":{key[1]},"round":{key[2]},{more}')
        for stage, begin_ns, end_ns in zip(_STAGES, times, times[1:], strict=False):
            self._begin(begin_ns, with_id, stage)
            self._end(end_ns, with_id, stage)
        self._end(times[-1], with_id, title)

    def _server_event(self, event: Event) -> None:
        at_ns, kind, tensor, partition, number, rank, nbytes = event
        if kind not in (ARRIVED, SUMMED):
            return
        key = (tensor, partition, number)
        arrived = self._rounds.setdefault(key, [])
        arrived.append((at_ns, rank))
        if kind == ARRIVED:
            return
        del self._rounds[key]
        if len(arrived) < self._size:  # the first of them were not recorded
            return
        self.partitions += 1
        with_id, title = self._id(key), self._title(tensor)
        first_ns, first = arrived[0]
        args = f'"partition":{partition},"round":{number},"bytes":{nbytes},"first":{first},"last":{rank}'
        self._begin(first_ns, with_id, title, args)
        self._begin(first_ns, with_id, "summed")
        self._end(at_ns, with_id, "summed")
        self._end(at_ns, with_id, title)
        self._moment(_SUMS, at_ns, "summed", tensor)
        for _, contributor in arrived:
            self._arrow("t", _SUMS, at_ns, key, contributor)

    def _id(self, key: _Key) -> str:
        """Tells apart what is under way at the same time, over all processes."""
        who = f"s{self._number}" if self._server else f"r{self._number}"
        return f'"cat":"byteps","id":"{who}.{key[0]}.{key[1]}.{key[2]}"'

    def _begin(self, at_ns: int, with_id: str, title: str, args: str = "") -> None:
        more = f',"args":{{{args}}}' if args else ""
        self._line(at_ns, f'"tid":{_EVENTS},"ph":"b",{with_id},"name":"{title}"{more}')

    def _end(self, at_ns: int, with_id: str, title: str) -> None:
        self._line(at_ns, f'"tid":{_EVENTS},"ph":"e",{with_id},"name":"{title}"')

    def _moment(self, track: int, at_ns: int, stage: str, tensor: int) -> None:
        name = f"{stage} {self._title(tensor)}"
        self._line(at_ns, f'"tid":{track},"ph":"X","dur":0,"cat":"moment","name":"{name}"')

    def _arrow(self, phase: str, track: int, at_ns: int, key: _Key, rank: int) -> None:
        """One point of the arrow of a rank's contribution. It hangs on the moment before it."""
        # Viewers take the identity for a number in base 16.
        identity = f"{rank & 0xFFF:03x}{key[0] & 0xFFFFF:05x}{key[1] & 0xFFFFF:05x}{key[2] & 0xFFF:03x}"
        bound = ',"bp":"e"' if phase == "f" else ""
        self._line(at_ns, f'"tid":{track},"ph":"{phase}","cat":"flow","id":"{identity}","name":"sum"{bound}')
