"""The timeline: what happened to every partition, on every rank and server.

``recorder`` collects while a job runs and keeps it in a ``spool``; ``chrome`` makes the file that Perfetto
opens; ``reading``, ``merging`` and ``summary`` are for afterwards. ``clock`` tells the coordinator's time.
"""

from __future__ import annotations

from byteps.trace.opening import open_trace
from byteps.trace.recorder import Trace

__all__ = ["Trace", "open_trace"]
