"""A virtual clock, links on it, and senders that ask the real scheduler which bytes they send next."""

from __future__ import annotations

import gc
import heapq
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from byteps import _native
from byteps.scheduler import POLICIES

_AT_ONCE = -1
"""What happens at a moment happens before anybody looks what to send at that moment."""


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Looking for cycles among millions of events, of which none is in one, takes a tenth of the time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


class Clock:
    """Runs what is due, in order of time. Seconds from 0."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._due: list[tuple[float, int, int, Callable[[], object]]] = []
        self._numbers = itertools.count()

    def at(self, time_s: float, action: Callable[[], object], turn: int = _AT_ONCE) -> None:
        """Have something done at a moment; among several at one moment, the one of the lowest turn first."""
        heapq.heappush(self._due, (time_s, turn, next(self._numbers), action))

    def run(self) -> None:
        """Until nothing is due."""
        with _no_garbage_collection():
            while self._due:
                self.now_s, _, _, action = heapq.heappop(self._due)
                action()


@dataclass(slots=True)
class Link:
    """Something that is busy for a time with each byte or frame: a direction of a link, or a thread.

    Attributes:
        free_s: the moment at which it will have carried all that it was given.
    """

    free_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Route:
    """The way of bytes to a peer. They are on all its links at once, since none waits for another's end.

    Attributes:
        links: each with the seconds that a byte, and that a frame takes.
    """

    links: Sequence[tuple[Link, float, float]]

    def carry(self, now_s: float, nbytes: int) -> float:
        """Take a frame along; the moment at which all of it has passed."""
        end_s = now_s
        # Millions of times in a plan, so without calls.
        for link, byte_s, frame_s in self.links:
            begin_s = link.free_s if link.free_s > now_s else now_s
            link.free_s = free_s = begin_s + nbytes * byte_s + frame_s
            if free_s > end_s:
                end_s = free_s
        return end_s


class Sender:
    """Hands frames over to links, in the order of a native scheduler.

    Args:
        clock: The time.
        routes: By the number of the peer.
        gates: What all routes pass: nothing is handed over while one of them has enough to do.
        ends: By the number of the peer: what only its route passes. While it has enough to do, others go on.
        policy: See ``byteps.scheduler.Scheduler``.
        credit_bytes: How much may be in flight.
        chunk_bytes: The largest frame.
        lag_s: How much of the links' time may be handed over before it is due.
        sent: Called for each frame with the partition, the moments at which it was handed over and will be
            there, and whether it is the partition's last.
    """

    def __init__(
        self,
        clock: Clock,
        routes: Mapping[int, Route],
        *,
        gates: Sequence[Link],
        ends: Mapping[int, Link],
        policy: str,
        credit_bytes: int,
        chunk_bytes: int,
        lag_s: float,
        sent: Callable[[int, float, float, bool], object],
    ) -> None:
        self._clock = clock
        self._routes = routes
        self._gates = gates
        self._ends = ends
        self._scheduler = _native.Scheduler(POLICIES[policy], credit_bytes)
        self._chunk_bytes = chunk_bytes
        self._lag_s = lag_s
        self._sent = sent
        self._peers = list(routes)
        self._numbers = {peer: number for number, peer in enumerate(self._peers)}
        self._busy = bytearray(len(self._peers))  # by number: 1 while that peer's end has enough to do
        self._until: list[tuple[float, int]] = []  # heap: when, of each of them
        self._turn = 0
        self._look_s = -1.0

    def submit(self, number: int, priority: int, peer: int, nbytes: int, credit_bytes: int) -> None:
        """A partition is there to be sent. Call ``look`` when all that came at this moment are."""
        self._scheduler.submit(number, priority, self._numbers[peer], nbytes, credit_bytes)

    def finish(self, number: int) -> None:
        """A partition is done, and its credit back."""
        self._scheduler.finish(number)
        self._look_at(self._clock.now_s)

    def look(self) -> None:
        """See now, after everything else of this moment, what can be sent."""
        self._look_at(self._clock.now_s)

    def _look_at(self, time_s: float) -> None:
        if not self._clock.now_s <= self._look_s <= time_s:
            self._look_s = time_s
            self._clock.at(time_s, self._send, self._turn)

    def _send(self) -> None:
        """Hand over what the links may be given."""
        now_s = self._clock.now_s
        if now_s != self._look_s:
            return  # it was looked earlier than this
        self._look_s = -1.0
        while self._until and self._until[0][0] <= now_s:
            self._busy[heapq.heappop(self._until)[1]] = 0
        while True:
            busiest_s = 0.0
            for gate in self._gates:  # millions of times in a plan, so without calls
                if gate.free_s > busiest_s:
                    busiest_s = gate.free_s
            free_s = busiest_s - self._lag_s
            if free_s > now_s:
                self._look_at(free_s)
                return
            grant = self._scheduler.next(self._chunk_bytes, self._busy)
            if grant is None:
                if self._until and len(self._scheduler):
                    self._look_at(self._until[0][0])
                return
            self._hand_over(now_s, *grant)

    def _hand_over(self, now_s: float, number: int, link: int, offset: int, nbytes: int, last: bool) -> None:
        peer = self._peers[link]
        end_s = self._routes[peer].carry(now_s, nbytes)
        self._turn += 1
        free_s = self._ends[peer].free_s - self._lag_s
        if free_s > now_s:
            self._busy[link] = 1
            heapq.heappush(self._until, (free_s, link))
        self._sent(number, now_s, end_s, last)
