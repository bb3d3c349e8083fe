"""Which server sums which partition: by bytes, whole batches at once, largest first, small ones beside them.

Placing by load keeps the busiest server within 2 % of the mean, where placing by hash of the name does not.
The rule that a partition is at most 1/200 of a server's mean bytes makes this possible for small models.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Sequence

from byteps.dtypes import GRAIN_BYTES
from byteps.wire import Part

_GOLDEN_RATIO = 0.6180339887
"""Its multiples spread evenly."""

_SMALL = 16
"""Pieces of which so many make a partition, or more, are small."""

PARTITIONS_PER_SERVER = 200
"""A server holds at least about this many partitions: the few in flight are then a small part of a step."""


def mixed_weights(n_workers: int, k_cpu_servers: int, colocated: int | None = None) -> list[float]:
    """Shares of the bytes that use all links fully when some servers share workers' machines.

    With n workers, each with a colocated server, and k CPU-only servers, a CPU server takes
    2(n-1)/(n^2+kn-2k) of the bytes and a colocated one (n-k)/(n^2+kn-2k) (Jiang et al., OSDI 2020). From
    k = n on the CPU servers take everything. Where only c of the workers have a server, a worker's link
    with a server carries 1 + (n-2)x and a CPU server's ny of the bytes; they are equal at
    x = (n-k)/(cn+kn-2k) and y = (n+c-2)/(cn+kn-2k), which are the above for c = n.

    Args:
        n_workers: Workers' machines; at least 1.
        k_cpu_servers: Servers on machines of their own; 0 or more.
        colocated: How many of the workers' machines have a server; all if not given.

    Returns:
        The colocated servers' weights, then the k CPU servers' weights; they add up to 1.

    Raises:
        ValueError: No worker, a negative number of servers, or no server at all.
    """
    n, k, c = n_workers, k_cpu_servers, n_workers if colocated is None else colocated
    if n < 1 or k < 0 or not 0 <= c <= n or c + k == 0:
        raise ValueError(
            f"mixed_weights needs at least 1 worker and no negative server count, not {n} and {k}"
        )
    if k >= n:
        return [0.0] * c + [1.0 / k] * k
    if c == 0:
        return [1.0 / k] * k
    whole = c * n + k * n - 2 * k
    return [(n - k) / whole] * c + [(n + c - 2) / whole] * k


class Unplaced:
    """Stands for a ``Placer`` in a job without servers: its tensors have no place, and no parts.

    Args:
        partition_bytes: Upper limit for the size of a partition.
    """

    def __init__(self, partition_bytes: int) -> None:
        self.partition_bytes = partition_bytes

    def place(self, sizes: Sequence[int], partition_bytes: int = 0) -> list[list[Part]]:
        """No parts for any tensor."""
        return [[] for _ in sizes]

    def spread(self, tensors: Sequence[Sequence[Part]], lanes: int) -> list[list[Part]]:
        """As ``place``."""
        return self.place([0] * len(tensors))

    def release(self, parts: Iterable[Part]) -> None:
        """Nothing was taken."""


class Placer:
    """Cuts tensors into partitions and gives each to a server and a lane, mindful of earlier batches.

    Args:
        num_servers: Servers; at least 1.
        lanes: Connections from each worker to each server; at least 1.
        partition_bytes: Upper limit for the size of a partition; rounded up to whole grains of 16 KiB.
        weights: Relative share of the bytes that each server is to take; all equal if not given. Servers of
            weight 0 get nothing.

    Attributes:
        partition_bytes: The upper limit after rounding.

    Raises:
        ValueError: No server or lane, or weights that do not fit.
    """

    def __init__(
        self, num_servers: int, lanes: int, partition_bytes: int, weights: Sequence[float] | None = None
    ) -> None:
        if num_servers < 1 or lanes < 1:
            raise ValueError(f"placement needs at least 1 server and 1 lane, not {num_servers} and {lanes}")
        self._weights = [1.0] * num_servers if weights is None else [float(weight) for weight in weights]
        if len(self._weights) != num_servers or min(self._weights) < 0 or not any(self._weights):
            raise ValueError(
                f"{num_servers} servers need as many weights, none negative, not all 0: {weights}"
            )
        self._lanes = lanes
        self.partition_bytes = max(1, -(-partition_bytes // GRAIN_BYTES)) * GRAIN_BYTES
        self._loads = [[0] * lanes for _ in range(num_servers)]

    @property
    def loads(self) -> list[int]:
        """Bytes that each server holds now."""
        return [sum(lanes) for lanes in self._loads]

    def partition_size(self, sizes: Sequence[int]) -> int:
        """Size in bytes of a batch's partitions: whole grains, smaller for small models and many servers.

        A batch of several tensors is a model, whatever was placed before (a broadcast of the same model, as a
        rule, that is over). A tensor on its own is taken for one of many, with all that were placed before.

        Args:
            sizes: Bytes of each tensor of the batch.
        """
        total = sum(sizes) + (sum(self.loads) if len(sizes) == 1 else 0)
        share = total // (len(self._loads) * PARTITIONS_PER_SERVER)
        return min(self.partition_bytes, max(GRAIN_BYTES, share // GRAIN_BYTES * GRAIN_BYTES))

    def place(self, sizes: Sequence[int], partition_bytes: int = 0) -> list[list[Part]]:
        """Place a batch of tensors.

        Args:
            sizes: Bytes of each tensor.
            partition_bytes: Of a partition, rounded down to whole grains; 0: see ``partition_size``.

        Returns:
            For each tensor its partitions in order: whole grains but for the last, none for 0 bytes.
        """
        size = self.partition_size(sizes)
        if partition_bytes:
            size = max(1, partition_bytes // GRAIN_BYTES) * GRAIN_BYTES
        cuts = [
            (min(size, nbytes - begin), index)
            for index, nbytes in enumerate(sizes)
            for begin in range(0, nbytes, size)
        ]
        places = self._choose_all(cuts, size)
        parts: list[list[Part]] = [[] for _ in sizes]
        for (nbytes, tensor), (server, lane) in zip(cuts, places, strict=True):
            parts[tensor].append(Part(server, lane, nbytes))
        return parts

    def release(self, parts: Iterable[Part]) -> None:
        """Give back what a forgotten tensor took."""
        for part in parts:
            self._loads[part.server][part.lane] -= part.nbytes

    def spread(self, tensors: Sequence[Sequence[Part]], lanes: int) -> list[list[Part]]:
        """Have partitions, which stay at their servers, travel over more lanes.

        Args:
            tensors: The partitions of each tensor; they were released before.
            lanes: How many there are from now on.
        """
        # What is not moved, such as broadcasts, says nothing of what will travel beside these.
        self._loads = [_evenly(sum(load), lanes) for load in self._loads]
        return [
            [Part(part.server, self._take(part.server, part.nbytes), part.nbytes) for part in parts]
            for parts in tensors
        ]

    def _choose_all(self, pieces: Sequence[tuple[int, int]], size: int) -> list[tuple[int, int]]:
        """(server, lane) for each piece (bytes, tensor), of at most ``size`` bytes.

        Small ones go where the last large one before them does: what a model needs at the same time then
        comes in one message, and waits for one server. Where there is none, or its server would get more than
        a partition above its share, they are spread like large ones.
        """
        large = [index for index, (nbytes, _) in enumerate(pieces) if nbytes * _SMALL > size]
        places = dict(zip(large, self._choose([pieces[index] for index in large]), strict=True))
        whole = sum(self.loads) + sum(nbytes for nbytes, _ in pieces if nbytes * _SMALL <= size)
        most = [whole * weight / sum(self._weights) + size for weight in self._weights]
        last, rest = None, []
        for index, (nbytes, _) in enumerate(pieces):
            if index in places:
                last = places[index]
            elif last is not None and sum(self._loads[last[0]]) + nbytes <= most[last[0]]:
                places[index] = last
                self._loads[last[0]][last[1]] += nbytes
            else:
                rest.append(index)
        places.update(zip(rest, self._choose([pieces[index] for index in rest]), strict=True))
        return [places[index] for index in range(len(pieces))]

    def _choose(self, pieces: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """(server, lane) for each piece (bytes, tensor); larger ones choose first, equal ones in their order.

        Tensors of one shape begin with another server each. What is less urgent is left for later, so for a
        while the last pieces of many tensors are: they must not all be at one server.
        """
        totals = self.loads
        places = [(0, 0)] * len(pieces)
        order = sorted(range(len(pieces)), key=lambda index: -pieces[index][0])
        for (_, tensor), group in itertools.groupby(order, key=pieces.__getitem__):
            heap = self._by_load(totals, first=int(tensor * _GOLDEN_RATIO * len(totals)))
            for index in group:
                _, turn, server = heap[0]
                places[index] = (server, self._take(server, pieces[index][0]))
                totals[server] += pieces[index][0]
                heapq.heapreplace(heap, (totals[server] / self._weights[server], turn, server))
        return places

    def _take(self, server: int, nbytes: int) -> int:
        """The lane of a server with fewest bytes, which has these now."""
        lanes = self._loads[server]
        lane = lanes.index(min(lanes))
        lanes[lane] += nbytes
        return lane

    def _by_load(self, totals: Sequence[int], first: int) -> list[tuple[float, int, int]]:
        """A heap of servers, the least loaded on top; of equal ones ``first`` and those that follow it."""
        count = len(totals)
        heap = [
            (totals[server] / weight, (server - first) % count, server)
            for server, weight in enumerate(self._weights)
            if weight
        ]
        heapq.heapify(heap)
        return heap


def _evenly(total: int, count: int) -> list[int]:
    """A number as the sum of some that differ by at most 1."""
    return [(total + index) // count for index in range(count)]
