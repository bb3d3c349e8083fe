"""Threads that wait for rounds, for those who cannot: each for one at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue


class Waiters:
    """Threads that wait, each for one round at a time: as many as are in flight, as any may end first."""

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = self._idle = 0

    def do(self, work: Callable[[], None]) -> None:
        """Have a thread do it, a new one if none is idle."""
        with self._lock:
            starts = not self._idle
            self._idle -= not starts
            self._threads += starts
        self._work.put(work)
        if starts:  # nothing that waits for another rank may keep this process from ending
            threading.Thread(target=self._serve, name="byteps-waiter", daemon=True).start()

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            del work  # which may hold memory, and the next may be long in coming
            with self._lock:
                self._idle += 1

    def close(self) -> None:
        """End the threads."""
        for _ in range(self._threads):
            self._work.put(None)
