"""Settings that change while training goes on: at the same round of each tensor on all ranks.

Rank 0 names the rounds, and begins no round from which another rank could reach one of them before all ranks
have taken note. No rank is ever more than one round ahead of another, so naming the third round from now
leaves time for that, and nobody waits in practice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from byteps.communicator.meter import Meter
from byteps.control import ControlClient
from byteps.wire import Agreed, Knobs, Message, Move, Proceed, Retune, Taken, TensorSpec, Welcome

LEADER = 0
AHEAD = 3
"""Rounds from the last one begun to the first with the new settings."""
_FIRST_WINDOW = 2
"""Steps to the first report where sizes are not searched: only the link's rate is of interest."""


class Tunable(Protocol):
    """Carries out rounds by settings that can change. No call may wait for another rank."""

    def move(self, move: Move) -> None:
        """The new number can be used from now on, beside the old one."""

    def set_knobs(self, knobs: Knobs) -> None:
        """Use these sizes from now on. Partitions change by ``move``."""

    def cost(self) -> tuple[float, float]:
        """Bytes per second of the link, and seconds that a partition costs besides; 0 if not known."""


class _Change(msgspec.Struct):
    """One message, and whether its settings are in force."""

    message: Retune
    made: bool = False


class Changes:
    """Changes of settings on one rank, and how long steps take with each.

    Args:
        control: This worker's connection to the coordinator.
        tunable: What they are for.
        rank: Of this worker.
        window: Steps to measure with the settings that the job began with.
        clock: Monotonic time in seconds.
    """

    def __init__(
        self,
        control: ControlClient,
        tunable: Tunable,
        rank: int,
        window: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._control = control
        self._tunable = tunable
        self._leads = rank == LEADER
        self._clock = clock
        # Held for a moment only, and never while a message is sent: the control thread takes it too.
        self._lock = threading.Lock()
        self._begun: dict[int, int] = {}
        self._moves: dict[int, tuple[_Change, Move]] = {}
        self._proceed = threading.Event()
        self._proceed.set()
        self._meter = Meter(window)

    @classmethod
    def of(cls, welcome: Welcome, control: ControlClient, tunable: Tunable) -> Changes | None:
        """What a job wants; None if its settings stay as they are."""
        tuning, spare = welcome.settings.tuning, welcome.settings.spare_lanes
        if tuning is None and not spare:
            return None
        return cls(control, tunable, welcome.rank, tuning.window if tuning else _FIRST_WINDOW)

    def begin(self, tensor: int, spec: TensorSpec) -> int:
        """A round of a tensor is about to begin. Returns the number that stands for it from now on."""
        if spec.ephemeral:
            return tensor
        with self._lock:
            number = self._begun.get(tensor, 0) + 1
            found = self._moves.get(tensor)
            if found is None and not self._leads:  # as in nearly all rounds
                self._begun[tensor] = number
                return tensor
        if found is not None and number >= found[1].round - 1 and self._leads:
            self._proceed.wait()
        with self._lock:
            if found is not None and number >= found[1].round:
                tensor, number = self._make(*found, number)
            self._begun[tensor] = number
            report = self._meter.begin(tensor, spec.nbytes, self._clock()) if self._leads else None
            steady = [each for each, rounds in self._begun.items() if rounds > 2] if report else []
        if report is not None:
            rate, overhead_s = self._tunable.cost()
            self._control.notify(report.message(steady, rate, overhead_s))
        return tensor

    def forget(self, tensor: int) -> None:
        """This rank will not use the tensor any more."""
        with self._lock:
            self._begun.pop(tensor, None)
            self._moves.pop(tensor, None)

    def notice(self, message: Message) -> None:
        """What the coordinator says. On the control thread."""
        if isinstance(message, Retune):
            self._retune(message)
        elif isinstance(message, Proceed):
            self._proceed.set()

    def fail(self) -> None:
        """Nothing will change any more; nobody need wait."""
        self._proceed.set()

    def _retune(self, message: Retune) -> None:
        change = _Change(message)
        for move in message.moves:
            if move.new != move.old:
                self._tunable.move(move)
        with self._lock:
            if self._leads:
                moves = [self._with_round(move) for move in message.moves]
                self._meter.expect(message)
            else:
                moves = list(message.moves)
            if moves:
                self._moves.update({move.old: (change, move) for move in moves})
                if self._leads:
                    self._proceed.clear()
        if not moves:
            self._tunable.set_knobs(message.knobs)
        elif self._leads:
            self._control.notify(Agreed(message.number, [move.round for move in moves]))
        else:
            self._control.notify(Taken(message.number))

    def _with_round(self, move: Move) -> Move:
        return Move(move.old, move.new, move.parts, self._begun.get(move.old, 0) + AHEAD)

    def _make(self, change: _Change, move: Move, number: int) -> tuple[int, int]:
        """Go over to a move's new number; the first tensor that does brings the settings into force."""
        del self._moves[move.old]
        if not change.made:
            change.made = True
            self._tunable.set_knobs(change.message.knobs)
        self._meter.moved(move.old, move.new)
        if move.new == move.old:
            return move.old, number
        self._begun.pop(move.old, None)
        return move.new, 1
