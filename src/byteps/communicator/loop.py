"""A thread that does what others give it, one after the other: what it alone touches needs no lock."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

_CLOSE_S = 5.0


class Loop:
    """Does work in the order in which it was given.

    Args:
        name: Of the thread.
        settle: Called when all that was waiting has been done: what has come meanwhile is done together.
        failed: Told what went wrong in one or the other. Must not raise.
        pause_s: For how long more is to come together before ``settle``; by default not at all.
    """

    def __init__(
        self,
        name: str,
        settle: Callable[[], None],
        failed: Callable[[Exception], None],
        pause_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._settle = settle
        self._failed = failed
        self._pause_s = pause_s
        self._closing = threading.Event()
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def put(self, work: Callable[[], None]) -> None:
        """Have something done."""
        self._queue.put(work)

    def close(self) -> None:
        """End once everything given so far has been done, or cannot be."""
        self._closing.set()
        self._queue.put(None)
        if self._thread.ident is not None and threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        goes_on = True
        while goes_on:
            try:
                goes_on = self._do_next() and self._do_waiting()
                if goes_on and (pause_s := self._pause_s()) > 0:
                    self._closing.wait(pause_s)
                    goes_on = self._do_waiting()
                if goes_on:
                    self._settle()
            except Exception as error:  # without this thread everybody would wait for ever
                self._failed(error)

    def _do_waiting(self) -> bool:
        """Do what is there by now; False if there will be no more."""
        return all(self._do_next() for _ in range(self._queue.qsize()))

    def _do_next(self) -> bool:
        """Wait for work and do it; False if there will be no more."""
        work = self._queue.get()
        if work is None:
            return False
        work()
        return True
