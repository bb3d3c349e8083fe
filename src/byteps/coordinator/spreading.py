"""When tensors go over to the lanes that a job has kept spare: once rank 0's links are seen to be fast.

How fast they are, nobody knows before bytes have moved. On slow ones a second lane makes urgent tensors wait
longer and gains nothing; so it takes a rate that only fast ones reach, and that one thread can hardly exceed.
"""

from __future__ import annotations

import logging

from byteps.coordinator.declarations import Outgoing
from byteps.coordinator.retuning import Retuning
from byteps.wire import Measured

REPORTS = 2
"""So many in a row must be of a high rate: one may have met a burst."""
WINDOW = 2
"""Steps to the first report, and to the one that confirms it."""
WATCHING = 20
"""Steps to the next report while the rate is low."""

_log = logging.getLogger(__name__)


class Spreading:
    """Watches the rate of rank 0's links until tensors travel over all lanes.

    Args:
        retuning: Carries out the change.
        lanes: How many there are.
        rate: Bytes per second from which more than one is worth its thread.
    """

    def __init__(self, retuning: Retuning, lanes: int, rate: float) -> None:
        self._retuning = retuning
        self._lanes = lanes
        self._rate = rate
        self._high = 0
        self.over = False

    def is_due(self, rate: float) -> bool:
        """Rank 0 has reported a rate; whether tensors are to go over now."""
        self._high = self._high + 1 if rate >= self._rate else 0
        return self._high >= REPORTS

    def spread(self, message: Measured) -> list[Outgoing]:
        """Have tensors go over; if none can yet, the next report is looked at again."""
        answer = self._retuning.spread(message.steady, self._lanes, WINDOW)
        self.over = self._retuning.changes
        if self.over:
            gbits = 8e-9 * message.rate
            _log.info("one connection moves %.1f Gbit/s: tensors travel over %d now", gbits, self._lanes)
        return answer

    def watch(self) -> list[Outgoing]:
        """Have rank 0 measure on."""
        return self._retuning.measure(WINDOW if self._high else WATCHING)
