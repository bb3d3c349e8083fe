"""The coordinator's time on a process's own monotonic clock.

As NTP has it (RFC 5905): the coordinator read its clock somewhere between question and answer, so the offset
is known to half of the round trip, and of several trips the shortest tells most.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

_PROBES = 8
_TRUSTED = 4
"""A reading is used only if its uncertainty is at most so many times that of the best."""


class Reading(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """One measurement.

    Attributes:
        at_ns: when, by the monotonic clock.
        offset_ns: the coordinator's wall clock minus the monotonic clock.
        uncertainty_ns: the true offset is at most so far away.
    """

    at_ns: int
    offset_ns: int
    uncertainty_ns: int


def measure(ask_wall_s: Callable[[], float]) -> Reading:
    """Compare the clocks.

    Args:
        ask_wall_s: asks for the coordinator's wall clock, seconds since the epoch.
    """
    return min((_probe(ask_wall_s) for _ in range(_PROBES)), key=lambda reading: reading.uncertainty_ns)


def _probe(ask_wall_s: Callable[[], float]) -> Reading:
    asked_ns = time.monotonic_ns()
    wall_ns = round(ask_wall_s() * 1e9)
    trip_ns = time.monotonic_ns() - asked_ns
    middle_ns = asked_ns + trip_ns // 2
    return Reading(middle_ns, wall_ns - middle_ns, trip_ns // 2)


class Mapping:
    """From the monotonic clock to the coordinator's, along straight lines between the readings.

    Args:
        readings: at least one.
    """

    def __init__(self, readings: Sequence[Reading]) -> None:
        best_ns = min(reading.uncertainty_ns for reading in readings)
        trusted = [reading for reading in readings if reading.uncertainty_ns <= _TRUSTED * best_ns]
        self._readings = sorted(trusted, key=lambda reading: reading.at_ns)
        self._segment = 0

    def wall_ns(self, at_ns: int) -> int:
        """The coordinator's wall clock at a moment of the monotonic clock, nanoseconds since the epoch."""
        readings = self._readings
        if len(readings) == 1 or at_ns <= readings[0].at_ns:
            return at_ns + readings[0].offset_ns
        if at_ns >= readings[-1].at_ns:
            return at_ns + readings[-1].offset_ns
        # Moments come nearly in order, so the segment is the last one or near it.
        while readings[self._segment].at_ns > at_ns:
            self._segment -= 1
        while readings[self._segment + 1].at_ns < at_ns:
            self._segment += 1
        before, after = readings[self._segment], readings[self._segment + 1]
        share = (at_ns - before.at_ns) / (after.at_ns - before.at_ns)
        return at_ns + before.offset_ns + round(share * (after.offset_ns - before.offset_ns))
