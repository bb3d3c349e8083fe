"""Which steps are recorded: from one step to another, both included."""

from __future__ import annotations

from collections.abc import Sequence

from byteps.trace.events import EVENT_BYTES, unpack
from byteps.trace.spool import Mark

STEP = "step"
"""The kind of the mark that ends a step."""

_ROUND = 4  # its place in an event


class Window:
    """Cuts what is recorded to the steps asked for.

    A step ends with a mark of the kind ``STEP``; where no program marks steps, the n-th round of the tensor
    that is used most often belongs to step n.

    Args:
        first: the first step to record, counted from 1; 0 or 1 also takes what comes before it.
        last: the last one; 0: no end.
    """

    def __init__(self, first: int, last: int) -> None:
        self._first, self._last = first, last
        self._marked = 0
        self._begin_ns: int | None = None if first > 1 else 0
        self._end_ns: int | None = None
        self._limited = first > 1 or last > 0

    @property
    def over(self) -> bool:
        """Whether the last step has ended."""
        return self._end_ns is not None

    def cut(self, events: bytes, marks: Sequence[Mark]) -> tuple[bytes, list[Mark]]:
        """What of a batch falls into the window."""
        if not self._limited:
            return events, list(marks)
        self._look_at_marks(marks)
        if not self._marked:
            self._look_at_rounds(events)
        if self._begin_ns is None:
            return b"", []
        begin_ns, end_ns = self._begin_ns, self._end_ns
        kept = [mark for mark in marks if mark[1] > begin_ns and (end_ns is None or mark[0] <= end_ns)]
        if begin_ns == 0 and end_ns is None:
            return events, kept
        chosen = (
            events[i * EVENT_BYTES : (i + 1) * EVENT_BYTES]
            for i, event in enumerate(unpack(events))
            if event[0] >= begin_ns and (end_ns is None or event[0] <= end_ns)
        )
        return b"".join(chosen), kept

    def _look_at_marks(self, marks: Sequence[Mark]) -> None:
        for _, end_ns, kind, _, _ in marks:
            if kind != STEP:
                continue
            self._marked += 1
            if self._begin_ns is None and self._marked == self._first - 1:
                self._begin_ns = end_ns
            if self._end_ns is None and self._marked == self._last:
                self._end_ns = end_ns

    def _look_at_rounds(self, events: bytes) -> None:
        for event in unpack(events):
            if self._begin_ns is None and event[_ROUND] >= self._first:
                self._begin_ns = event[0]
            if self._end_ns is None and 0 < self._last < event[_ROUND]:
                self._end_ns = event[0]
