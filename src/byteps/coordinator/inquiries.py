"""Which ranks have not contributed to a tensor? Workers ask; the servers that sum it know, or rank 0."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from byteps.errors import ProtocolError
from byteps.wire import AskMissing, Missing


@dataclass(slots=True)
class _Inquiry:
    rank: int
    request: int
    waits_for: set[int]
    heard: dict[int, float] = field(default_factory=dict)


class Inquiries:
    """Questions that servers have yet to answer.

    Args:
        heard: Seconds since the coordinator last heard of a rank; infinite if it does not know.
    """

    def __init__(self, heard: Callable[[int], float]) -> None:
        self._heard = heard
        self._next_request = 0
        self._open: dict[int, _Inquiry] = {}

    def ask(self, rank: int, message: AskMissing, servers: Collection[int]) -> AskMissing:
        """What to ask each of ``servers``, at least one, on behalf of a rank."""
        request = self._next_request
        self._next_request += 1
        self._open[request] = _Inquiry(rank, message.request, set(servers))
        return AskMissing(request, message.id)

    def answered(self, server: int, message: Missing) -> tuple[int, Missing] | None:
        """A server's answer. With the last one, the rank that asked and what to tell it.

        Raises:
            ProtocolError: The server was not asked, or its answer does not fit together.
        """
        inquiry = self._open.get(message.request)
        if inquiry is None or server not in inquiry.waits_for or len(message.ranks) != len(message.heard):
            raise ProtocolError(f"member {server} answered inquiry {message.request}, which it did not get")
        inquiry.waits_for.discard(server)
        for rank, heard_s in zip(message.ranks, message.heard, strict=True):
            inquiry.heard[rank] = min(heard_s, inquiry.heard.get(rank, self._heard(rank)))
        if inquiry.waits_for:
            return None
        del self._open[message.request]
        ranks = sorted(inquiry.heard)
        return inquiry.rank, Missing(inquiry.request, ranks, [inquiry.heard[rank] for rank in ranks])
