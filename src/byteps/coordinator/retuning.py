"""Changes of settings on their way: cut tensors anew, have rank 0 name the rounds, tell the others, go on."""

from __future__ import annotations

import math
from collections.abc import Sequence

from byteps.coordinator.declarations import Declarations, Outgoing, ToRank
from byteps.coordinator.tensors import Tensor, TensorTable
from byteps.errors import ProtocolError
from byteps.wire import Agreed, Knobs, Move, Proceed, Retune, Taken

LEADER = 0


class Retuning:
    """One change after another.

    Args:
        size: Number of ranks.
        table: The job's tensors.
        declarations: Installs what is cut anew.
        start: The settings that the job runs with.
        cuts: Whether servers sum, so that tensors have partitions.
    """

    def __init__(
        self, size: int, table: TensorTable, declarations: Declarations, start: Knobs, cuts: bool
    ) -> None:
        self._ranks = set(range(size))
        self._table = table
        self._declarations = declarations
        self._running = start
        self._cuts = cuts
        self._message: Retune | None = None
        self._waits_for: set[int] = set()
        self.number = 0

    @property
    def running(self) -> Knobs:
        """The settings that the job has, or is going over to."""
        return self._running

    @property
    def changes(self) -> bool:
        """Whether rank 0 is to name rounds from which something is different."""
        return self._message is not None

    def change(self, knobs: Knobs, steady: Sequence[int], limit_s: float, steps: int) -> list[Outgoing]:
        """Have all ranks run with other settings, or rank 0 measure once more.

        Where there is no tensor that all ranks could change over with, the settings stay (``running``).

        Args:
            knobs: The settings.
            steady: Tensors that are used in every step.
            limit_s: See ``Retune``.
            steps: How many to measure.
        """
        moves: list[Move] = []
        created: list[Tensor] = []
        if self._cuts and knobs.partition_bytes != self._running.partition_bytes:
            moves, created = self._table.recut(steady, knobs.partition_bytes)
        elif self._cuts and knobs != self._running:
            moves = self._table.steady(steady)
        if self._cuts and not moves:
            knobs = self._running
        self._running = knobs
        return self._ask(moves, created, limit_s, steps)

    def spread(self, steady: Sequence[int], lanes: int, steps: int) -> list[Outgoing]:
        """Have tensors that are used in every step travel over so many lanes, by the settings that run."""
        moves, created = self._table.spread(steady, lanes)
        return self._ask(moves, created, math.inf, steps)

    def measure(self, steps: int) -> list[Outgoing]:
        """Have rank 0 measure so many steps more, with nothing changed."""
        return self._ask([], [], math.inf, steps)

    def _ask(self, moves: list[Move], created: list[Tensor], limit_s: float, steps: int) -> list[Outgoing]:
        """Begin a change at rank 0, once servers know what is new."""
        self.number += 1
        limit_s = min(limit_s, 1e9)  # infinity is no number on the wire
        message = Retune(self.number, self._running, moves, limit_s, steps)
        self._message = message if moves else None
        return self._declarations.replace(LEADER, created, message)

    def agreed(self, rank: int, message: Agreed) -> list[Outgoing]:
        """Rank 0 has named the rounds.

        Raises:
            ProtocolError: It was not asked, or names too few.
        """
        asked = self._message
        if rank != LEADER or asked is None or message.number != asked.number or self._waits_for:
            raise ProtocolError(f"rank {rank} named rounds for change {message.number}, unasked")
        if len(message.rounds) != len(asked.moves):
            raise ProtocolError(
                f"rank {rank} named {len(message.rounds)} rounds for {len(asked.moves)} tensors"
            )
        moves = [
            Move(move.old, move.new, move.parts, number)
            for move, number in zip(asked.moves, message.rounds, strict=True)
        ]
        self._message = None
        self._waits_for = self._ranks - {LEADER}
        change = Retune(asked.number, asked.knobs, moves, asked.limit_s, asked.steps)
        return [ToRank(each, change) for each in sorted(self._waits_for)] + self._proceed()

    def taken(self, rank: int, message: Taken) -> list[Outgoing]:
        """Another rank has taken note.

        Raises:
            ProtocolError: It was not told.
        """
        if rank not in self._waits_for or message.number != self.number:
            raise ProtocolError(f"rank {rank} took note of change {message.number}, which it was not told of")
        self._waits_for.discard(rank)
        return self._proceed()

    def depart(self, rank: int) -> list[Outgoing]:
        """A rank left in order."""
        self._ranks.discard(rank)
        if rank not in self._waits_for:
            return []
        self._waits_for.discard(rank)
        return self._proceed()

    def _proceed(self) -> list[Outgoing]:
        return [] if self._waits_for else [ToRank(LEADER, Proceed(self.number))]
