"""How the ranks of each node divide what they have summed, so that shares fit together between the nodes.

Every rank of a node of L ranks holds one L-th of a sum. Nodes may have different numbers of ranks: what one
rank holds is cut wherever a rank's share begins on any node, so that each cut lies within one rank's share
on every node, and goes between just these ranks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

_ALIGNED = 16
"""Shares are whole multiples of so many elements: collectives move aligned memory faster."""


@dataclass(frozen=True, slots=True)
class Share:
    """Elements that one rank of each node sums with the others over the network.

    Attributes:
        begin, end: Which elements of the whole.
        members: The ranks that hold them, one of each node.
    """

    begin: int
    end: int
    members: tuple[int, ...]


class Shares:
    """Who holds what.

    Args:
        nodes: The ranks of each node, every rank in one.
        rank: This rank.

    Attributes:
        node: The ranks of this node; the first one leads.
        place: This rank's place among them.
    """

    def __init__(self, nodes: Sequence[Sequence[int]], rank: int) -> None:
        self._nodes = [tuple(node) for node in nodes]
        self.node = next(node for node in self._nodes if rank in node)
        self.place = self.node.index(rank)
        self._granule = math.lcm(*map(len, self._nodes)) * _ALIGNED

    @property
    def size(self) -> int:
        """All ranks of the job."""
        return sum(map(len, self._nodes))

    @property
    def cross(self) -> bool:
        """Whether there are several nodes, so that sums of one are not all."""
        return len(self._nodes) > 1

    def padded(self, elements: int) -> int:
        """So many elements can be divided evenly on every node."""
        return -(-elements // self._granule) * self._granule

    def own(self, padded: int) -> list[Share]:
        """What this rank pushes of ``padded`` elements, in order; without gaps, together its share."""
        borders = {padded * part // len(node) for node in self._nodes for part in range(len(node) + 1)}
        size = padded // len(self.node)
        first, last = self.place * size, (self.place + 1) * size
        return [
            Share(begin, end, self._holders(begin, padded))
            for begin, end in itertools.pairwise(sorted(borders))
            if first <= begin < last
        ]

    def _holders(self, element: int, padded: int) -> tuple[int, ...]:
        return tuple(sorted(node[element * len(node) // padded] for node in self._nodes))
