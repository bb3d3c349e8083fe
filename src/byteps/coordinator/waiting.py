"""Waiting is never silent: after 10 s, then every 30 s, the log says who is waited for."""

from __future__ import annotations

import logging
from collections.abc import Callable

FIRST_S = 10.0
AGAIN_S = 30.0

_log = logging.getLogger(__name__)


class WaitLog:
    """Times the log lines of one wait after another.

    Args:
        clock: Monotonic time in seconds.

    Attributes:
        due_s: When the next line is to be written; ``None`` while nobody waits.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.due_s: float | None = None
        self._clock = clock
        self._began_s = 0.0

    def begin(self) -> None:
        """A wait begins, unless it has already."""
        if self.due_s is None:
            self._began_s = self._clock()
            self.due_s = self._began_s + FIRST_S

    def end(self) -> None:
        """Nobody waits any more."""
        self.due_s = None

    def log(self, whom: Callable[[], str]) -> None:
        """Write the line if it is time to.

        Args:
            whom: Gives the text of what is waited for.
        """
        now = self._clock()
        if self.due_s is None or now < self.due_s:
            return
        self.due_s = now + AGAIN_S
        _log.warning("waiting for %s, %.0f s so far", whom(), now - self._began_s)
