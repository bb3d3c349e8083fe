"""Collects events while a job runs: ``Recorder`` does, ``Trace`` is what stands in its place when off."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from byteps.errors import BytePSError, remedy
from byteps.trace.clock import Reading, measure
from byteps.trace.events import CAPACITY, EVENT_BYTES
from byteps.trace.spool import Batch, Mark, Names, Record, Spool
from byteps.trace.window import Window

MAX_EVENTS = 1_000_000
"""A timeline ends there: viewers have trouble with more, and disks fill."""

INTERVAL_S = 0.25
_CLOCK_INTERVAL_S = 30.0
_JOIN_S = 60.0

_log = logging.getLogger("byteps.trace")

TakeEvents = Callable[[], "tuple[bytes, int]"]


class Trace:
    """Records nothing: what a process has that was asked for no timeline. All methods cost next to nothing.

    Attributes:
        on: whether it records, for whoever would have to prepare a mark.
        capacity: events that each native lane is to keep.
    """

    on = False
    capacity = 0

    def now_ns(self) -> int:
        """The begin of a span to be recorded later; 0 when off."""
        return 0

    def mark(self, kind: str, name: str = "") -> None:
        """Record that something happened now.

        Args:
            kind: "ready": a tensor can be sent, which without this mark is when it is submitted; "updated": a
                parameter was; or a word of your own.
            name: of the tensor as declared; empty: of all.
        """

    def span(self, kind: str, name: str, begin_ns: int) -> None:
        """Record what went on from ``begin_ns``, as ``now_ns`` gave it, until now.

        Args:
            kind: "ready": a tensor could be sent, and is submitted now; "waiting": this thread waited for a
                result; "step": the optimizer's step, which ends a training step; "updated": the update of
                parameters; or a word of your own.
            name: of the tensor as declared; empty: of all.
            begin_ns: when it began.
        """

    def name_tensor(self, number: int, name: str) -> None:
        """The events of this tensor are to be shown under this name."""

    def start(self, take_events: TakeEvents, ask_wall_s: Callable[[], float]) -> None:
        """Begin to collect.

        Args:
            take_events: of the native worker or server.
            ask_wall_s: asks for the coordinator's wall clock, seconds since the epoch.
        """

    def close(self) -> None:
        """Write the timeline. Never raises: what goes wrong is logged. Calling it again does nothing."""

    def abandon(self) -> None:
        """In a forked child: let go of what was inherited."""


class Recorder(Trace):
    """Records into a spool, from a thread of its own, and makes a timeline of that in the end.

    Args:
        spool: where to; it has its head.
        path: of the timeline.
        window: which steps.
    """

    capacity = CAPACITY

    def __init__(self, spool: Spool, path: Path, window: Window) -> None:
        self.on = True
        self.path = path
        self._spool = spool
        self._window = window
        self._marks: list[Mark] = []
        self._names: list[tuple[int, str]] = []
        self._recorded = 0
        self._take_events: TakeEvents = lambda: (b"", 0)
        self._ask_wall_s: Callable[[], float] | None = None
        self._clock_due_s = 0.0
        self._stop = threading.Event()
        self._lock = threading.Lock()  # between the thread and close()
        self._thread: threading.Thread | None = None

    def now_ns(self) -> int:
        """See ``Trace.now_ns``."""
        return time.monotonic_ns()

    def mark(self, kind: str, name: str = "") -> None:
        """See ``Trace.mark``."""
        if self.on:
            now_ns = time.monotonic_ns()
            self._marks.append((now_ns, now_ns, kind, name, threading.get_ident()))

    def span(self, kind: str, name: str, begin_ns: int) -> None:
        """See ``Trace.span``."""
        if self.on:
            self._marks.append((begin_ns, time.monotonic_ns(), kind, name, threading.get_ident()))

    def name_tensor(self, number: int, name: str) -> None:
        """See ``Trace.name_tensor``."""
        if self.on:
            self._names.append((number, name))

    def start(self, take_events: TakeEvents, ask_wall_s: Callable[[], float]) -> None:
        """See ``Trace.start``."""
        self._take_events = take_events
        self._ask_wall_s = ask_wall_s
        self._thread = threading.Thread(target=self._run, name="byteps-trace", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """See ``Trace.close``."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_S)
        with self._lock:
            if self.on:
                self._collect()
            self._finish()

    def abandon(self) -> None:
        """See ``Trace.abandon``."""
        self.on = False
        self._lock = threading.Lock()  # a thread that does not exist in this process may hold the other
        self._thread = None
        self._spool.close()

    def _run(self) -> None:
        self._read_clock()
        while self.on and not self._stop.wait(INTERVAL_S):
            with self._lock:
                self._read_clock()
                if not self._collect():
                    self._finish()

    def _read_clock(self) -> None:
        """Compare the clocks now and then: they drift apart, milliseconds in a minute."""
        if self._ask_wall_s is None or time.monotonic() < self._clock_due_s:
            return
        self._clock_due_s = time.monotonic() + _CLOCK_INTERVAL_S
        try:
            self._write(measure(self._ask_wall_s))
        except BytePSError as error:  # the job is over, or the coordinator busy: there are other readings
            _log.debug("no reading of the coordinator's clock: %s", error)

    def _collect(self) -> bool:
        """Move what was recorded since the last time into the spool; returns whether recording goes on."""
        events, dropped = self._take_events()  # before the marks: see Batch
        marks, self._marks = self._marks, []
        names, self._names = self._names, []
        events, kept = self._window.cut(events, marks)
        if names:
            self._write(Names(names))
        if events or kept:
            self._write(Batch(events, kept, dropped))
        self._recorded += len(events) // EVENT_BYTES + len(kept)
        if self._window.over:
            self.on = False
        elif self._recorded >= MAX_EVENTS:
            self.on = False
            _log.warning(
                "the timeline %s is full (%d events) and ends here; choose the steps to record with "
                "trace_start_step and trace_end_step",
                self.path,
                self._recorded,
            )
        return self.on

    def _write(self, record: Record | Reading) -> None:
        try:
            self._spool.write(record)
        except OSError as error:
            self.on = False
            _log.warning(
                "the timeline ends here, the training does not: cannot write %s: %s%s",
                self._spool.path,
                error.strerror,
                remedy(error),
            )

    def _finish(self) -> None:
        """Make the timeline of the spool, and remove that."""
        self.on = False
        if self._spool.is_open:
            self._spool.close()
            write_timeline(self._spool.path, self.path)


def write_timeline(spool: Path, path: Path) -> None:
    """Convert a spool and remove it; log what came of that."""
    from byteps.trace.chrome import convert  # only now: it takes time to import

    try:
        written = convert(spool, path)
        spool.unlink()
    except OSError as error:
        _log.warning(
            "cannot write the timeline %s: %s%s; `byteps trace merge %s -o FILE` makes one of what was "
            "recorded",
            path,
            error.strerror,
            remedy(error),
            spool,
        )
        return
    if written.dropped:
        _log.warning(
            "the timeline %s lacks %d events that came faster than they could be kept", path, written.dropped
        )
    _log.info("the timeline is in %s (%d partitions)", path, written.partitions)
