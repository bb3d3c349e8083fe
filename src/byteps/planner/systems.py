"""What carries the gradients: servers apart from the workers and with them, or rings of workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from byteps.communicator.all_reduce_sizes import Sizes
from byteps.placement import Placer, mixed_weights
from byteps.planner.cluster import GBIT, Cluster, DataPath
from byteps.planner.engine import Link, Route, Sender
from byteps.planner.profile import Profile
from byteps.planner.step import Outcome, Step, Unit

APART = 1 << 20
"""Servers on CPU machines have numbers from here on, those on the workers' machines from 0."""
_ENDLESS = 1 << 62


@dataclass(frozen=True, slots=True)
class Servers:
    """Parameter servers: byteps's own, placed as its coordinator would place the partitions.

    All workers do the same at the same time, so the model has one of them, its link in both directions and
    its I/O thread, and those of every server. A frame to or from a server on another worker's machine is at
    once one that this machine's server gets or sends, so it takes both directions of the link; one in n
    partitions stays on its own machine.

    Args:
        count: CPU machines that run a server.
    """

    count: int

    def share(self, cluster: Cluster) -> float:
        """How many seconds of a worker's link a second's worth of gradients takes on the busiest link."""
        if cluster.workers == 1:
            return 0.0
        apart = sum(self._weights(cluster)[-self.count :]) if self.count else 0.0
        ratio = cluster.bytes_per_s / cluster.server_bytes_per_s
        own = apart + 2 * (1 - apart) * (cluster.workers - 1) / cluster.workers
        summing = (1 - apart) * cluster.bytes_per_s / (cluster.sum_gbit * GBIT)
        return max(own, summing, apart * ratio * cluster.workers / self.count if self.count else 0.0)

    def partition_bytes(self, profile: Profile, cluster: Cluster, path: DataPath) -> int:
        """The largest partition that the coordinator would make, in bytes."""
        return self._placer(cluster, path).partition_size([layer.nbytes for layer in profile.layers])

    def simulate(
        self,
        profile: Profile,
        cluster: Cluster,
        path: DataPath,
        *,
        crosses: bool = True,
        record: bool = False,
    ) -> Outcome:
        """A step."""
        units = list(self._units(profile, cluster, path)) if cluster.workers > 1 else []
        step = Step(profile.layers, units, crosses=crosses, record=record)
        return step.run(_Wires(self, step, cluster, path, _largest(units)).worker)

    def peers(self, cluster: Cluster) -> list[int]:
        """The numbers of all servers, in the order of the placement."""
        return [*range(cluster.workers if cluster.colocated else 0), *range(APART, APART + self.count)]

    def byte_s(self, cluster: Cluster, peer: int) -> float:
        """Seconds that a byte takes from, or to, all workers on a server's link."""
        n = cluster.workers
        if peer >= APART:
            return n / cluster.server_bytes_per_s
        return max((n - 1) / cluster.bytes_per_s, n / (cluster.sum_gbit * GBIT))

    def away_s(self, cluster: Cluster, largest: int) -> float:
        """For how long a partition holds its credit when all links are busy, seconds."""
        used = range(APART, APART + 1) if self.count >= cluster.workers else self.peers(cluster)
        slowest_s = max(self.byte_s(cluster, peer) for peer in (used[0], used[-1]))
        return 2 * (cluster.latency_s + largest * slowest_s)

    def credit(self, cluster: Cluster, path: DataPath, largest: int) -> int:
        """Bytes that a worker may have in flight: as set, or what the automatic credit settles at."""
        away_s = self.away_s(cluster, largest)
        busy = min(cluster.workers, len(self.peers(cluster)))
        return path.credit(self._rate(cluster), 2 * cluster.latency_s, largest, away_s, busy)

    def enough_credit(self, cluster: Cluster, largest: int) -> int:
        """Bytes in flight that keep all links busy, and as many again, since links are never quite even."""
        return int(2 * self._rate(cluster) * self.away_s(cluster, largest))

    def _rate(self, cluster: Cluster) -> float:
        return cluster.bytes_per_s / max(1.0, self.share(cluster))

    def _weights(self, cluster: Cluster) -> list[float]:
        """Of the servers on the workers' machines, if any, then of those apart."""
        if not cluster.colocated:
            return [1 / self.count] * self.count
        return mixed_weights(cluster.workers, self.count)

    def _placer(self, cluster: Cluster, path: DataPath) -> Placer:
        weights = self._weights(cluster)
        return Placer(len(weights), 1, path.partition_bytes, weights)

    def _units(self, profile: Profile, cluster: Cluster, path: DataPath) -> Iterator[Unit]:
        sizes = [nbytes for layer in profile.layers for nbytes in layer.tensors]
        peers = self.peers(cluster)
        if path.whole_tensors:
            placed = [[(nbytes, peers[number % len(peers)])] for number, nbytes in enumerate(sizes)]
        else:
            parts = self._placer(cluster, path).place(sizes)
            placed = [[(part.nbytes, peers[part.server]) for part in tensor] for tensor in parts]
        number = 0
        for index, layer in enumerate(profile.layers):
            for _ in layer.tensors:
                yield Unit(placed[number], (index,), -number)
                number += 1


def _largest(units: Sequence[Unit]) -> int:
    return max((nbytes for unit in units for nbytes, _ in unit.pieces), default=1)


class _Wires:
    """The worker, the servers and the links between them.

    A server gets a partition from all workers at about the same time, so it takes n times as long to come in
    as a worker takes to send it; meanwhile the workers send to other servers. The same with results.
    """

    def __init__(self, servers: Servers, step: Step, cluster: Cluster, path: DataPath, largest: int) -> None:
        self._step = step
        self._latency_s = cluster.latency_s
        self._path, self._rate = path, cluster.bytes_per_s
        n, frame_s = cluster.workers, path.overhead_s / path.lanes(self._rate)
        out, back, thread = Link(), Link(), Link()
        own = {True: [(out, 1 / self._rate, 0.0)], False: [(back, 1 / self._rate, 0.0)]}
        beside = [(link, (n - 1) / n / self._rate, 0.0) for link in (out, back)]
        ways: dict[bool, dict[int, Route]] = {True: {}, False: {}}
        ends: dict[bool, dict[int, Link]] = {True: {}, False: {}}
        for peer in servers.peers(cluster):
            apart = peer >= APART
            handling = Link()
            for pushes in (True, False):
                end = Link()
                links = [*(own[pushes] if apart else beside), (end, servers.byte_s(cluster, peer), 0.0)]
                ways[pushes][peer] = Route([*links, (thread, 0.0, frame_s), (handling, 0.0, n * frame_s)])
                ends[pushes][peer] = end
        credit = servers.credit(cluster, path, largest)
        self.worker = self._sender("push", ways[True], ends[True], [out, thread], credit)
        self._apart = self._sender("result", ways[False], ends[False], [back, thread], _ENDLESS)
        self._beside = self._sender("result", ways[False], ends[False], [out, back, thread], _ENDLESS)

    def _sender(
        self, lane: str, routes: dict[int, Route], ends: dict[int, Link], gates: Sequence[Link], credit: int
    ) -> Sender:
        def sent(number: int, begin_s: float, end_s: float, last: bool) -> None:
            self._step.note(lane, number, begin_s, end_s)
            if last:
                arrived = self._summed if lane == "push" else self._done
                self._step.clock.at(end_s + self._latency_s, partial(arrived, number))

        waits = self._path.policy == "stop-and-wait" and lane == "result"
        return Sender(
            self._step.clock,
            routes,
            gates=gates,
            ends=ends,
            policy="priority" if waits else self._path.policy,
            credit_bytes=credit,
            chunk_bytes=self._path.chunk_bytes(self._rate),
            lag_s=self._path.handed_over_s(self._rate),
            sent=sent,
        )

    def _server(self, peer: int) -> Sender:
        return self._apart if peer >= APART else self._beside

    def _summed(self, number: int) -> None:
        piece = self._step.pieces[number]
        server = self._server(piece.peer)
        server.submit(number, piece.priority, piece.peer, piece.nbytes, 0)
        server.look()

    def _done(self, number: int) -> None:
        self._server(self._step.pieces[number].peer).finish(number)
        self._step.done(number)
        self.worker.finish(number)


@dataclass(frozen=True, slots=True)
class Rings:
    """All-reduce by rings over all workers, one after the other, or scheduled like pushes.

    Every part of a ring passes each worker's link 2(n-1)/n times and waits for 2(n-1) messages. One after
    the other, as DistributedDataParallel sends its buckets, the wait is lost; scheduled ones overlap.

    Args:
        scheduled: By priority and in partitions, with a credit; else first come first served in buckets.
    """

    scheduled: bool

    def share(self, cluster: Cluster) -> float:
        """How many seconds of a worker's link a second's worth of gradients takes."""
        ranks = cluster.workers * cluster.gpus
        return 2 * (ranks - 1) / ranks if cluster.workers > 1 else 0.0

    def partition_bytes(self, profile: Profile, cluster: Cluster, path: DataPath) -> int:
        """The size of a part that balances waiting and preemption, or of a bucket, in bytes."""
        if not self.scheduled:
            return max(path.fusion_bytes, *(max(layer.tensors, default=0) for layer in profile.layers), 1)
        return self._sizes(profile, cluster, path).collective_bytes

    def simulate(
        self,
        profile: Profile,
        cluster: Cluster,
        path: DataPath,
        *,
        crosses: bool = True,
        record: bool = False,
    ) -> Outcome:
        """A step."""
        units = list(self._units(profile, path)) if cluster.workers > 1 else []
        step = Step(profile.layers, units, crosses=crosses, record=record)
        handling_s, wait_s = _handling_s(cluster, path), _rounds(cluster) * cluster.latency_s
        latency_s = wait_s if self.scheduled else 0.0

        def sent(number: int, begin_s: float, end_s: float, last: bool) -> None:
            step.note("push", number, begin_s, end_s)
            if last:
                step.clock.at(end_s + latency_s, partial(done, number))

        def done(number: int) -> None:
            step.done(number)
            sender.finish(number)

        rate = self._rate(cluster)
        ring, thread = Link(), Link()
        sender = Sender(
            step.clock,
            {0: Route([(ring, 1 / rate, wait_s - latency_s), (thread, 0.0, handling_s)])},
            gates=[ring, thread],
            ends={0: ring},
            policy=path.policy if self.scheduled else "fifo",
            credit_bytes=self._sizes(profile, cluster, path).credit_bytes if self.scheduled else _ENDLESS,
            chunk_bytes=_ENDLESS,
            lag_s=0.0,
            sent=sent,
        )
        return step.run(sender)

    def _rate(self, cluster: Cluster) -> float:
        """Bytes of gradients that rings move in a second."""
        return cluster.bytes_per_s / max(self.share(cluster), 1e-9)

    def _sizes(self, profile: Profile, cluster: Cluster, path: DataPath) -> Sizes:
        """What byteps would choose, once it has measured what the links are."""
        sizes = Sizes(fixed_credit_bytes=path.credit_bytes)
        sizes.step_bytes, sizes.rate = profile.nbytes, self._rate(cluster)
        sizes.latency_s = _rounds(cluster) * (path.overhead_s + cluster.latency_s)
        return sizes

    def _units(self, profile: Profile, path: DataPath) -> Iterator[Unit]:
        """Tensors from the last to the first, together until they are large enough, then in partitions."""
        size = path.partition_bytes if self.scheduled and not path.whole_tensors else profile.nbytes
        held, layers = 0, []
        for index in range(len(profile.layers) - 1, -1, -1):
            for nbytes in reversed(profile.layers[index].tensors):
                held += nbytes
                layers.append(index)
                if held >= max(path.fusion_bytes, 1):
                    yield _unit(held, layers, size)
                    held, layers = 0, []
        if held:
            yield _unit(held, layers, size)


def _rounds(cluster: Cluster) -> int:
    return 2 * (cluster.workers * cluster.gpus - 1)


def _handling_s(cluster: Cluster, path: DataPath) -> float:
    """What a ring costs each rank's threads, beside the link."""
    return _rounds(cluster) * path.overhead_s + path.collective_s


def _unit(nbytes: int, layers: Sequence[int], size: int) -> Unit:
    pieces = [(min(size, nbytes - begin), 0) for begin in range(0, nbytes, size)]
    return Unit(pieces, tuple(dict.fromkeys(layers)), -min(layers))
