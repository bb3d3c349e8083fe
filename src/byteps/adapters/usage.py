"""Which parameters have a gradient on some rank: who has none must know whether to expect a result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from byteps.adapters.arrays import Array, reduce_arrays
from byteps.adapters.calls import Call
from byteps.dtypes import ReduceOp
from byteps.session import Session


class Slot(Protocol):
    """What an adapter knows of a parameter.

    Attributes:
        parameter: The parameter; its ``requires_grad`` says that it is not frozen.
        flight: Its gradient that this rank has sent in this round; None if there is none.
    """

    @property
    def parameter(self) -> Any: ...

    @property
    def flight(self) -> object | None: ...


SlotT = TypeVar("SlotT", bound=Slot)


class Usage(Generic[SlotT]):
    """Agrees with the other ranks on the parameters that take part in a round.

    The first round counts the ranks that use each parameter. Where some but not all do, or none does though
    it is not frozen, the parameter is doubtful, and later rounds ask for the doubtful ones again. Models that
    use all parameters, or freeze them, ask only once. All ranks count anew after a ``join``: one that had no
    step before it has not counted.

    Args:
        session: Where to ask.
        prefix: Begins the names on the wire.
        members: The ranks that take part; all if empty.
    """

    def __init__(self, session: Session, prefix: str, members: tuple[int, ...] = ()) -> None:
        self._session = session
        self._members = members
        self._prefix = prefix
        self._joins = session.joins
        self._asked = 0
        self._doubtful: list[SlotT] | None = None

    def forget(self) -> None:
        """Count anew in the next round, for example because there are more parameters."""
        self._doubtful = None

    def lacking(self, slots: Sequence[SlotT]) -> list[SlotT]:
        """Those that have nothing in flight here and need this rank to take part.

        Args:
            slots: All parameters; what has a gradient on this rank is in flight.
        """
        if self._joins != self._session.joins:
            self._joins, self._asked, self._doubtful = self._session.joins, 0, None
        if self._doubtful is None:
            return [slot for slot in self._count(slots) if slot.flight is None]
        used = self._ask(self._doubtful)
        rest = [slot for slot in slots if slot.flight is None]
        doubtful = set(self._doubtful) if rest else set()
        return [s for s in rest if s in used or (s.parameter.requires_grad and s not in doubtful)]

    def _count(self, slots: Sequence[SlotT]) -> list[SlotT]:
        """Parameters that some rank uses."""
        size = len(self._members) or self._session.size
        frozen = size + 1  # counts in one number: ranks that froze it, times this, plus ranks that use it
        marks = [1 if s.flight else 0 if s.parameter.requires_grad else frozen for s in slots]
        totals = [divmod(total, frozen) for total in self._reduce(np.array(marks, np.int64), ReduceOp.SUM)]
        self._doubtful = [
            slot for slot, (freezing, using) in zip(slots, totals, strict=True) if max(freezing, using) < size
        ]
        return [slot for slot, (_, using) in zip(slots, totals, strict=True) if using]

    def _ask(self, doubtful: Sequence[SlotT]) -> set[SlotT]:
        if not doubtful:
            return set()
        marks = [1 if slot.flight else 0 for slot in doubtful]
        used = self._reduce(np.array(marks, np.uint8), ReduceOp.MAX)
        return {slot for slot, mark in zip(doubtful, used, strict=True) if mark}

    def _reduce(self, marks: Array, op: ReduceOp) -> list[int]:
        counting = op is ReduceOp.SUM
        self._asked += counting
        name = f"{self._prefix}#{'count' if counting else 'used'}.{self._joins}.{self._asked}"
        call = Call(self._session, name, op, priority=1, ephemeral=counting, members=self._members)
        return [int(mark) for mark in reduce_arrays([call], [marks])[0]]
