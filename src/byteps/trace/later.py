"""A timeline that a running program starts and stops: ``timeline = DYNAMIC``."""

from __future__ import annotations

import threading
from collections.abc import Callable

from byteps.trace.events import CAPACITY
from byteps.trace.recorder import Recorder, TakeEvents, Trace

DYNAMIC = "DYNAMIC"
"""In place of a file: none yet, perhaps later. Horovod's word."""


class LaterTrace(Trace):
    """Records nothing until it is told where to, any number of times.

    Native lanes keep their latest events all the time; those from before a beginning are thrown away.

    Args:
        open_recorder: Makes the recorder of a file.
    """

    capacity = CAPACITY

    def __init__(self, open_recorder: Callable[[str], Recorder]) -> None:
        self._open_recorder = open_recorder
        self._recorder: Recorder | None = None
        self._names: dict[int, str] = {}
        self._take_events: TakeEvents = lambda: (b"", 0)
        self._ask_wall_s: Callable[[], float] | None = None
        self._lock = threading.Lock()

    def begin(self, file: str) -> None:
        """Record from now on.

        Args:
            file: As the user gave it.

        Raises:
            ValueError: It records already.
            OSError: The file cannot be written.
        """
        with self._lock:
            if self._recorder is not None:
                raise ValueError(f"a timeline is recorded already, in {self._recorder.path}: stop it first")
            recorder = self._open_recorder(file)
            for number, name in self._names.items():
                recorder.name_tensor(number, name)
            self._take_events()
            if self._ask_wall_s is not None:
                recorder.start(self._take_events, self._ask_wall_s)
            self._recorder, self.on = recorder, True

    def end(self) -> None:
        """Write what was recorded. Does nothing if nothing is."""
        with self._lock:
            recorder, self._recorder, self.on = self._recorder, None, False
        if recorder is not None:
            recorder.close()

    def now_ns(self) -> int:
        """See ``Trace.now_ns``."""
        recorder = self._recorder
        return 0 if recorder is None else recorder.now_ns()

    def mark(self, kind: str, name: str = "") -> None:
        """See ``Trace.mark``."""
        if (recorder := self._recorder) is not None:
            recorder.mark(kind, name)

    def span(self, kind: str, name: str, begin_ns: int) -> None:
        """See ``Trace.span``; what began before the timeline did is left out."""
        if (recorder := self._recorder) is not None and begin_ns:
            recorder.span(kind, name, begin_ns)

    def name_tensor(self, number: int, name: str) -> None:
        """See ``Trace.name_tensor``."""
        self._names[number] = name
        if (recorder := self._recorder) is not None:
            recorder.name_tensor(number, name)

    def start(self, take_events: TakeEvents, ask_wall_s: Callable[[], float]) -> None:
        """See ``Trace.start``."""
        self._take_events, self._ask_wall_s = take_events, ask_wall_s

    def close(self) -> None:
        """See ``Trace.close``."""
        self.end()

    def abandon(self) -> None:
        """See ``Trace.abandon``."""
        self._lock = threading.Lock()  # a thread that does not exist in this process may hold the other
        recorder, self._recorder, self.on = self._recorder, None, False
        if recorder is not None:
            recorder.abandon()
