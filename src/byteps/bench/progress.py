"""How far a measurement is: a bar where someone looks at a terminal and rich is installed, else lines."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as Bar


class Progress:
    """Use as a context manager.

    Args:
        title: begins each line.
        total: number of steps.
        shown: whether to show anything: one rank speaks for all.
    """

    def __init__(self, title: str, total: int, *, shown: bool) -> None:
        self._title = title
        self._total = total
        self._shown = shown
        self._done = 0
        self._bar: Bar | None = None

    def __enter__(self) -> Progress:
        if self._shown and sys.stderr.isatty():
            self._bar = _bar()
        if self._bar is not None:
            self._bar.start()
            self._bar.add_task(self._title, total=self._total)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def begin(self, what: str) -> None:
        """The next step begins."""
        if self._bar is not None:
            (task,) = self._bar.task_ids
            self._bar.update(task, completed=self._done, description=f"{self._title}: {what}")
        elif self._shown:
            print(f"{self._title}: {self._done + 1} of {self._total}: {what}", file=sys.stderr, flush=True)
        self._done += 1


def _bar() -> Bar | None:
    try:
        from rich.console import Console
        from rich.progress import Progress as Bar
    except ImportError:
        return None
    return Bar(console=Console(stderr=True), transient=True)
