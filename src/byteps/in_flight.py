"""The rounds that a session has begun and that nobody has waited for yet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

_FEW = 64


class _Round(Protocol):
    name: str

    def poll(self) -> bool: ...


class Unfinished(Protocol):
    """Leaves rounds to themselves for a while."""

    def finish_rounds(self) -> None:
        """Take the results of all rounds in flight. Must not raise."""
        ...


RoundT = TypeVar("RoundT", bound=_Round)


class InFlight(Generic[RoundT]):
    """The last round of each tensor, by the tensor's name. Does no locking."""

    def __init__(self) -> None:
        self._rounds: dict[str, RoundT] = {}
        self._look_at = _FEW

    def __len__(self) -> int:
        return len(self._rounds)

    def __iter__(self) -> Iterator[RoundT]:
        return iter(list(self._rounds.values()))

    def add(self, begun: RoundT) -> None:
        """Keep a round."""
        self._rounds[begun.name] = begun

    def remove(self, waited: RoundT) -> bool:
        """Forget a round; False if it is known no longer."""
        known = self._rounds.get(waited.name) is waited
        if known:
            del self._rounds[waited.name]
        return known

    def is_busy(self, name: str) -> bool:
        """Whether a round of this tensor is not over."""
        last = self._rounds.get(name)
        return last is not None and not last.poll()

    def clear(self) -> None:
        """Forget all."""
        self._rounds.clear()

    def over(self) -> list[RoundT]:
        """Rounds that are over, for which nobody may ever wait. Looks only once there are twice as many."""
        if len(self._rounds) < self._look_at:
            return []
        found = [one for one in self if one.poll()]
        self._look_at = max(_FEW, 2 * (len(self._rounds) - len(found)))
        return found
