"""What a user sees of rounds that take long: one sentence per tensor, and a dump on demand (SIGUSR1)."""

from __future__ import annotations

from byteps.diagnostics.signals import DumpOnSignal
from byteps.diagnostics.wording import (
    OpenRound,
    Round,
    count,
    describe_open,
    describe_rounds,
    duration,
    size,
    stall,
    table,
    user_name,
)

__all__ = [
    "DumpOnSignal",
    "OpenRound",
    "Round",
    "count",
    "describe_open",
    "describe_rounds",
    "duration",
    "size",
    "stall",
    "table",
    "user_name",
]
