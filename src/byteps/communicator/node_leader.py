"""The first rank of a node decides what its ranks do next, so that all start collectives in one order.

Nothing is begun that some rank could not go on with at once: a part of a tensor is reduced once all ranks of
the node have submitted the tensor, and gathered once all have the sums over all nodes of their shares. So
whatever a program or another node is late with holds up nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

import msgspec

from byteps.communicator.all_reduce_leader import Leader
from byteps.communicator.all_reduce_rounds import Round
from byteps.communicator.all_reduce_sizes import Sizes
from byteps.communicator.interface import OK

REDUCE, GATHER, FAIL = 0, 1, 2
_CONCURRENCY = 8
"""Parts being reduced, at most: what comes after them is chosen late, and may be more urgent."""

Part = tuple[int, int]
"""A tensor's number, and where a part of it begins."""
Step = tuple[int, int, int, int]
"""REDUCE or GATHER, tensor, begin, bytes; or FAIL, tensor, status, peer."""


class News(msgspec.Struct, frozen=True, array_like=True):
    """What a rank tells the leader of its node.

    Attributes:
        ready: Tensors whose next round it has submitted.
        arrived: (tensor, begin, status, peer): its share of a part is summed over all nodes, or will not be.
    """

    ready: list[int]
    arrived: list[tuple[int, int, int, int]]


class NodeLeader:
    """Decides.

    Args:
        size: Ranks of the node.
        chunk_bytes: Where tensors are cut.
        policy: Of the scheduler.
        gathers: Whether gathering is a step of its own; else a part is gathered when it is reduced.
    """

    def __init__(self, size: int, chunk_bytes: int, policy: str, gathers: bool) -> None:
        self._leader = Leader(size, _CONCURRENCY, Sizes(chunk_bytes), policy, fuses=False)
        self._size = size
        self._gathers = gathers
        self._reducing: dict[Part, int] = {}
        self._lacking: dict[Part, set[int]] = {}  # places of those without their share's sum
        self._steps: list[Step] = []

    def hear(self, place: int, news: News, rounds: Mapping[int, Round]) -> None:
        """A rank has news.

        Args:
            place: Whose, on the node.
            news: What it says.
            rounds: The leader's own, by tensor.
        """
        for tensor in news.ready:
            if self._leader.announced(place, tensor) and tensor in rounds:
                self._leader.schedule(rounds[tensor])
        for tensor, begin, status, peer in news.arrived:
            lacking = self._lacking.get((tensor, begin))
            if lacking is None:
                continue
            if status != OK:
                self.fail(tensor, status, peer)
                continue
            lacking.discard(place)
            if not lacking:
                del self._lacking[tensor, begin]
                self._steps.append((GATHER, tensor, begin, 0))

    def steps(self, rounds: Collection[int]) -> list[Step]:
        """What all ranks of the node do next, in order.

        Args:
            rounds: Tensors whose rounds have not failed.
        """
        steps, self._steps = self._steps, []
        while (batch := self._leader.next()) is not None:
            number, [(tensor, begin, nbytes)] = batch
            if tensor not in rounds:
                self._leader.finished(number, time.monotonic())
                continue
            self._reducing[tensor, begin] = number
            if self._gathers:
                self._lacking[tensor, begin] = set(range(self._size))
            steps.append((REDUCE, tensor, begin, nbytes))
        return steps

    def reduced(self, part: Part) -> None:
        """The leader's own share of a part has left the device."""
        self._leader.finished(self._reducing.pop(part), time.monotonic())

    def fail(self, tensor: int, status: int, peer: int) -> None:
        """No part of the tensor can be gathered any more."""
        self._lacking = {part: lacking for part, lacking in self._lacking.items() if part[0] != tensor}
        self._steps.append((FAIL, tensor, status, peer))

    def fail_all(self, status: int, peer: int) -> None:
        """A rank of the node takes no part any more in what has not been gathered."""
        for tensor in {tensor for tensor, _ in self._lacking}:
            self.fail(tensor, status, peer)

    def missing(self, tensor: int) -> list[int]:
        """Places of ranks that have not submitted a round of the tensor that others have."""
        return self._leader.missing(tensor)

    def forget(self, tensor: int) -> None:
        """No round of the tensor will come about."""
        self._leader.forget(tensor)

    def close(self) -> None:
        """Decide nothing any more."""
        self._leader.close()
        self._steps.clear()
