"""Which parameters have a gradient on some rank: who has none must know whether to expect a result."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import torch
from torch import Tensor

from byteps.dtypes import ReduceOp
from byteps.session import Session
from byteps.torch.sending import start
from byteps.torch.slots import Slot
from byteps.torch.tensors import spec_of


class Usage:
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
        self._doubtful: list[Slot] | None = None

    def forget(self) -> None:
        """Count anew in the next round, for example because there are more parameters."""
        self._doubtful = None

    def lacking(self, slots: Sequence[Slot]) -> list[Slot]:
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

    def _count(self, slots: Sequence[Slot]) -> list[Slot]:
        """Parameters that some rank uses."""
        size = len(self._members) or self._session.size
        frozen = size + 1  # counts in one number: ranks that froze it, times this, plus ranks that use it
        marks = [1 if s.flight else 0 if s.parameter.requires_grad else frozen for s in slots]
        totals = [divmod(total, frozen) for total in self._reduce(marks, torch.int64, ReduceOp.SUM)]
        self._doubtful = [
            slot for slot, (freezing, using) in zip(slots, totals, strict=True) if max(freezing, using) < size
        ]
        return [slot for slot, (_, using) in zip(slots, totals, strict=True) if using]

    def _ask(self, doubtful: Sequence[Slot]) -> set[Slot]:
        if not doubtful:
            return set()
        marks = [1 if slot.flight else 0 for slot in doubtful]
        used = self._reduce(marks, torch.uint8, ReduceOp.MAX)
        return {slot for slot, mark in zip(doubtful, used, strict=True) if mark}

    def _reduce(self, marks: Sequence[int], dtype: torch.dtype, op: ReduceOp) -> list[int]:
        counting = op is ReduceOp.SUM
        self._asked += counting
        name = f"{self._prefix}#{'count' if counting else 'used'}.{self._joins}.{self._asked}"
        vector = torch.tensor(marks, dtype=dtype)
        spec = msgspec.structs.replace(spec_of(vector, name, op, ephemeral=counting), members=self._members)
        start(self._session, spec, vector, vector, priority=1).finish()
        return _integers(vector)


def _integers(vector: Tensor) -> list[int]:
    return [int(value) for value in vector.tolist()]
