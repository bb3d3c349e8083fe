"""How many CPUs nodes leave each process, and who is pinned to which of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from byteps.topology.machine import Machine

Nodes = frozenset[int]


class Rooms:
    """Who is pinned to which nodes, so that nobody has fewer CPUs than if nobody was pinned.

    Processes that belong to one node are pinned to the same set of nodes. Sets never overlap unless one holds
    the other, so a set is crowded exactly if its CPUs, divided by those who may use nothing else, are fewer
    than all CPUs divided by all processes.

    Args:
        machine: Says how far nodes are from each other.
        cpus: How many each node has; nodes without are not in it.
        processes: How many there are in all.

    Attributes:
        chosen: The set of nodes for those who belong to a node.
        everything: All nodes: who has these is not pinned.
    """

    def __init__(self, machine: Machine, cpus: Mapping[int, int], processes: int) -> None:
        self._machine = machine
        self._cpus = cpus
        self._processes = processes
        self._counts: Counter[int] = Counter()
        self._servers: Counter[int] = Counter()
        self.chosen: dict[int, Nodes] = {}
        self.everything: Nodes = frozenset(cpus)

    def settle(self, homes: Sequence[int]) -> None:
        """Pin processes, given the node that each belongs to: as near to it as there is room."""
        self._counts.update(homes)
        self.chosen = {home: frozenset({home}) for home in homes}
        while self._widen() or self._join():
            pass

    def add(self, near: int | None) -> int | None:
        """Pin one more process to a single node.

        Args:
            near: a node; those nearest to it are tried first. None: those with most room first.

        Returns:
            The node; None if it has no room anywhere.
        """
        for node in sorted(self.everything, key=lambda node: self._order(near, node)):
            self._servers[node] += 1
            sets = {frozenset({node}), *(each for each in self.chosen.values() if node in each)}
            if not any(map(self._is_crowded, sets)):
                return node
            self._servers[node] -= 1
        return None

    def why_not(self, home: int) -> str:
        """Why those who belong to a node are not pinned to just that."""
        count = self._counts[home]
        if not self._cpus.get(home):
            return f"node {home} has no CPU for it"
        return (
            f"node {home} alone would leave it {_number(self._cpus[home] / count)} CPUs, its share of all is "
            f"{_number(sum(self._cpus.values()) / self._processes)}"
        )

    def _order(self, near: int | None, node: int) -> tuple[float, int]:
        if near is not None:
            return self._machine.distance(near, node), node
        inside = self._servers[node] + self._counts[node]
        return -self._cpus[node] / (1 + inside), node

    def _is_crowded(self, nodes: Nodes) -> bool:
        count = sum(n for home, n in self._counts.items() if self.chosen[home] <= nodes)
        count += sum(n for node, n in self._servers.items() if node in nodes)
        inside = sum(self._cpus.get(node, 0) for node in nodes)
        return inside * self._processes < sum(self._cpus.values()) * count

    def _widen(self) -> bool:
        """Let the first crowded set grow. Returns whether there was one."""
        crowded = next(
            (nodes for nodes in sorted(self.chosen.values(), key=sorted) if self._is_crowded(nodes)), None
        )
        for home, nodes in self.chosen.items():
            if nodes == crowded:
                self.chosen[home] = self._next(home, nodes)
        return crowded is not None

    def _next(self, home: int, nodes: Nodes) -> Nodes:
        """A set with the nearest nodes that are not in it."""
        outside = {node: self._machine.distance(home, node) for node in self.everything - nodes}
        nearest = min(outside.values())
        wider = (nodes & self.everything) | {
            node for node, distance in outside.items() if distance == nearest
        }
        return frozenset(wider)

    def _join(self) -> bool:
        """Unite two sets that overlap. Returns whether there were any."""
        for one in self.chosen.values():
            for other in self.chosen.values():
                if one & other and not one <= other and not other <= one:
                    for home, nodes in self.chosen.items():
                        if nodes in (one, other):
                            self.chosen[home] = one | other
                    return True
        return False


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
