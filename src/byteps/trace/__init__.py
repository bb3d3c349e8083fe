"""The timeline: what happened to every partition, on every rank and server.

``recorder`` collects while a job runs, or ``later`` when it is told to, and keeps it in a ``spool``;
``chrome`` makes the file that Perfetto opens; ``reading``, ``merging`` and ``summary`` are for afterwards.
``clock`` tells the coordinator's time.
"""

from __future__ import annotations

from byteps.trace.later import DYNAMIC, LaterTrace
from byteps.trace.opening import open_trace
from byteps.trace.recorder import Trace

__all__ = ["DYNAMIC", "LaterTrace", "Trace", "open_trace"]
