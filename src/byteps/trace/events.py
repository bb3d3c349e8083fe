"""What the native lanes record: the layout of ``native/events.h``."""

from __future__ import annotations

import struct
from collections.abc import Iterator

CAPACITY = 1 << 16
"""Events that a lane keeps until they are taken; 2 MiB."""

QUEUED, PUSHING, PUSHED, RETURNED, ARRIVED, SUMMED = range(1, 7)
"""The kinds, as they follow each other; the last two are a server's."""

_LAYOUT = struct.Struct("=q6I")
EVENT_BYTES = _LAYOUT.size

Event = tuple[int, int, int, int, int, int, int]
"""Time (ns of the monotonic clock), kind, tensor, partition, round, peer, bytes of the partition."""


def unpack(data: bytes) -> Iterator[Event]:
    """The events in what a native ``take_events`` gave."""
    return _LAYOUT.iter_unpack(data)


def pack(event: Event) -> bytes:
    """The reverse, for one event."""
    return _LAYOUT.pack(*event)
