"""Which ranks have not contributed to a tensor? Workers ask; the servers that sum it know, or rank 0.

Where ranks of a node sum first, a server knows of the one that pushes for them; that one knows the others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from byteps.errors import ProtocolError
from byteps.wire import AskMissing, Missing

Asked = tuple[str, int]
"""Role and number of a member."""


@dataclass(slots=True)
class _Inquiry:
    rank: int
    request: int
    waits_for: set[Asked]
    heard: dict[int, float] = field(default_factory=dict)
    explained: set[int] = field(default_factory=set)
    neighbours: set[int] = field(default_factory=set)


class Inquiries:
    """Questions that servers have yet to answer.

    Args:
        heard: Seconds since the coordinator last heard of a rank; infinite if it does not know.
    """

    def __init__(self, heard: Callable[[int], float]) -> None:
        self._heard = heard
        self._next_request = 0
        self._open: dict[int, _Inquiry] = {}

    def ask(self, rank: int, message: AskMissing, members: Collection[Asked]) -> AskMissing:
        """What to ask each of ``members``, at least one, on behalf of a rank."""
        request = self._next_request
        self._next_request += 1
        self._open[request] = _Inquiry(rank, message.request, set(members))
        return AskMissing(request, message.id)

    def answered(self, role: str, number: int, message: Missing) -> list[tuple[int, Missing]]:
        """A member's answer. With the last one, the rank that asked and what to tell it.

        Raises:
            ProtocolError: The member was not asked, or its answer does not fit together.
        """
        inquiry, member = self._open.get(message.request), (role, number)
        if inquiry is None or member not in inquiry.waits_for or len(message.ranks) != len(message.heard):
            raise ProtocolError(f"{role} {number} answered inquiry {message.request}, which it did not get")
        for rank, heard_s in zip(message.ranks, message.heard, strict=True):
            inquiry.heard[rank] = min(heard_s, inquiry.heard.get(rank, self._heard(rank)))
        if role == "worker" and message.ranks:
            inquiry.neighbours.update(message.ranks)
            inquiry.explained.add(number)
        return self._heard_of(message.request, member)

    def depart(self, rank: int) -> list[tuple[int, Missing]]:
        """A rank has left, and answers nothing any more."""
        member = ("worker", rank)
        asked = [number for number, one in self._open.items() if member in one.waits_for]
        return [answer for number in asked for answer in self._heard_of(number, member)]

    def _heard_of(self, number: int, member: Asked) -> list[tuple[int, Missing]]:
        inquiry = self._open[number]
        inquiry.waits_for.discard(member)
        if inquiry.waits_for:
            return []
        del self._open[number]
        # Who waits for neighbours is not late itself.
        ranks = sorted(inquiry.heard.keys() - (inquiry.explained - inquiry.neighbours))
        return [(inquiry.rank, Missing(inquiry.request, ranks, [inquiry.heard[rank] for rank in ranks]))]
