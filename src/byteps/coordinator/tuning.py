"""Tuning as the coordinator does it: what rank 0 measures goes to the tuner, what that wants is carried out.

The tuner may take a second to say what to try next; it runs where it holds up nobody (``Defer``).
"""

from __future__ import annotations

import hashlib
import logging
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from byteps.coordinator.declarations import Outgoing
from byteps.coordinator.retuning import Retuning
from byteps.coordinator.tensors import TensorTable
from byteps.tuning import records
from byteps.tuning.samplers import SAMPLERS
from byteps.tuning.space import COLLECTIVE_SPACE, SERVER_SPACE, Point, closed_form
from byteps.tuning.tuner import AGAIN_EVERY, CONFIRMED, Search, Timing, Try, Tuner
from byteps.wire import Measured, TuningSettings

Defer = Callable[[Callable[[], Try], Callable[[Try], list[Outgoing]]], None]
"""Runs the first elsewhere and the second, with its result, where the coordinator runs."""

WATCHING = 4
"""When nothing is searched, so many times more steps are measured at once."""
_CALLS_S = 50e-6
"""What a partition costs besides its bytes where nobody has measured it."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class World:
    """What a result holds for, together with the model.

    Attributes:
        workers, servers: How many; without servers the workers sum among themselves.
    """

    workers: int
    servers: int

    def __str__(self) -> str:
        return f"{self.workers} workers, " + (f"{self.servers} servers" if self.servers else "all-reduce")


class Tuning:
    """The search of one job.

    Args:
        settings: What the workers want.
        world: The job.
        table: Its tensors.
        retuning: Carries out changes.
        folder: Where results are kept.
        defer: See ``Defer``.
    """

    def __init__(
        self,
        settings: TuningSettings,
        world: World,
        table: TensorTable,
        retuning: Retuning,
        folder: Path,
        defer: Defer,
    ) -> None:
        self._settings = settings
        self._world = world
        self._table = table
        self._retuning = retuning
        self._folder = folder
        self._defer = defer
        self._tuner: Tuner | None = None
        self._record: records.Record | None = None
        self._is_known = False
        self._over = False

    def measured(self, message: Measured) -> list[Outgoing]:
        """Rank 0 has measured what was asked for. A report on an older change is passed over."""
        if message.number != self._retuning.number or self._over:
            return []

        def then(wanted: Try) -> list[Outgoing]:
            tuner = self._tuner
            if tuner is None:
                return []
            steps = self._settings.window * (WATCHING if tuner.settled else 1)
            return self._retuning.change(wanted.knobs, message.steady, wanted.limit_s, steps)

        self._defer(lambda: self._advance(message), then)
        return []

    def _advance(self, message: Measured) -> Try:
        """What is to run next. Never raises: training goes on whatever becomes of tuning."""
        try:
            if self._tuner is None:
                self._tuner = self._begin(message)
            tuner = self._tuner
            if self._retuning.running != tuner.now.knobs:
                return tuner.now  # no tensor could go over to these, so that was not their time: once more
            before = tuner.settled
            wanted = tuner.advance(Timing(tuple(message.seconds), message.cut))
            if tuner.settled and not before:
                _log.info("tuning is over: %s; best: %s", tuner.reason, records.describe(tuner.best))
            if not (before and tuner.settled):
                self._save(tuner)
            return wanted
        except Exception:
            _log.warning("tuning has failed; training goes on with the best settings so far", exc_info=True)
            self._over = True
            return Try("failed", self._settings.start if self._tuner is None else self._tuner.best)

    def _save(self, tuner: Tuner) -> None:
        """Keep what was tried. What an earlier job has found stays until a whole search has found another."""
        record = self._record
        if record is not None and (not self._is_known or (tuner.settled and tuner.reason != CONFIRMED)):
            record.save(tuner)

    def _begin(self, message: Measured) -> Tuner:
        space = SERVER_SPACE if self._world.servers else COLLECTIVE_SPACE
        step_s = statistics.median(message.seconds)
        specs = [one.spec for one in map(self._table.get, message.steady) if one is not None and one.spec]
        step_bytes = sum(spec.nbytes for spec in specs)
        # A link that was never measured under load moves at least a step's bytes in a step's time.
        rate = message.rate or step_bytes / step_s
        overhead_s = message.overhead_s or _CALLS_S

        def first() -> Point:
            return closed_form(space, step_bytes, rate, overhead_s)

        model = hashlib.sha256(repr(sorted((s.name, s.dtype, s.shape) for s in specs)).encode()).hexdigest()
        self._record = records.Record(
            self._folder, model[:12], str(self._world), round(math.log2(max(rate, 1.0))), step_bytes
        )
        known = self._record.known()
        self._is_known = known is not None
        is_grid = self._settings.search == "grid"  # its places and nothing else
        search = Search(
            space,
            lambda: SAMPLERS[self._settings.search](space, 0),
            self._settings.trials,
            None if is_grid else first,
            None if is_grid else known,
            0 if is_grid else AGAIN_EVERY,
        )
        return Tuner(self._settings.start, search)
