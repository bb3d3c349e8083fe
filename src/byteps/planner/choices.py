"""Ways of exchanging a model's gradients on a cluster: how long a step takes with each, and what it costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from byteps.planner import bounds
from byteps.planner.cluster import Cluster, DataPath
from byteps.planner.profile import Profile
from byteps.planner.step import Outcome
from byteps.planner.systems import Rings, Servers

FIFO = "all-reduce, FIFO"
SCHEDULED = "all-reduce, scheduled"
WITH_WORKERS = "servers with the workers"
DDP_BUCKET_BYTES = 25 << 20
"""What DistributedDataParallel sends together by default."""
MANY = 12
"""More numbers of servers than this are not tried one by one."""
PARTS = 6
"""But these many, and one."""
Settings = Mapping[str, Any]
"""Fields of ``DataPath`` by their names."""
_AS_THEY_ARE: Settings = MappingProxyType({})
_PARTITIONS = (64 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20)
_CREDITS = (1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20)


@dataclass(frozen=True, slots=True)
class Choice:
    """A way of exchanging gradients and what it gives.

    Args:
        name: In words.
        servers: CPU machines that it needs.
        step_s: Time of a training step, seconds.
        limit_s: What no order of sending could beat, seconds.
        fifo_s: What sending in the order of readiness could reach at best, seconds.
        efficiency: Share of the step in which workers compute.
        samples_per_s: Of all workers.
        epoch_s: Time of an epoch, seconds; 0 if nobody said how many samples it has.
        epoch_cost: Price of all machines for that time; 0 without prices.
        partition_bytes: The largest part that is sent as one.
        credit_bytes: Of servers, what may be in flight; 0: automatic.
    """

    name: str
    servers: int
    step_s: float
    limit_s: float
    fifo_s: float
    efficiency: float
    samples_per_s: float
    epoch_s: float
    epoch_cost: float
    partition_bytes: int
    credit_bytes: int


@dataclass(frozen=True, slots=True)
class Planner:
    """Tries ways of exchanging a model's gradients on a cluster.

    Args:
        profile: The model.
        cluster: The machines.
        path: byteps's settings to start from.
        samples_per_epoch: Samples of the training data; 0: not known.
    """

    profile: Profile
    cluster: Cluster
    path: DataPath
    samples_per_epoch: float = 0.0

    def names(self) -> Iterator[tuple[str, int]]:
        """All ways to try: name and number of CPU servers."""
        yield FIFO, 0
        yield SCHEDULED, 0
        if self.cluster.colocated:
            yield WITH_WORKERS, 0
        for servers in counts(self.cluster.servers):
            yield server_name(servers, self.cluster), servers

    def choice(self, name: str, servers: int) -> Choice:
        """One of them, tried."""
        step_s = self.step(name, servers).step_s
        system, path = self.way(name, servers)
        rate, layers = self.cluster.bytes_per_s, self.profile.layers
        costs = bounds.costs(layers, system.share(self.cluster), rate)
        samples_per_s = self.profile.batch_size * self.cluster.gpus * self.cluster.workers / step_s
        epoch_s = self.samples_per_epoch / samples_per_s
        return Choice(
            name=name,
            servers=servers,
            step_s=step_s,
            limit_s=bounds.limit_s(layers, costs),
            fifo_s=bounds.fifo_s(layers, costs),
            efficiency=bounds.compute_s(layers) / step_s,
            samples_per_s=samples_per_s,
            epoch_s=epoch_s,
            epoch_cost=epoch_s / 3600 * self.cluster.price(servers),
            partition_bytes=system.partition_bytes(self.profile, self.cluster, path),
            credit_bytes=path.credit_bytes,
        )

    def step(
        self, name: str, servers: int, settings: Settings = _AS_THEY_ARE, *, record: bool = False
    ) -> Outcome:
        """A step of one way.

        Args:
            name: Of the way.
            servers: CPU servers.
            settings: Fields of the data path that differ.
            record: Note what was done when.
        """
        system, path = self.way(name, servers)
        path = dataclasses.replace(path, **settings)
        return system.simulate(self.profile, self.cluster, path, crosses=name != FIFO, record=record)

    def way(self, name: str, servers: int) -> tuple[Servers | Rings, DataPath]:
        """What stands behind a name, with the settings that suit it."""
        if name == FIFO:
            return Rings(scheduled=False), dataclasses.replace(self.path, fusion_bytes=DDP_BUCKET_BYTES)
        if name == SCHEDULED:
            rings = Rings(scheduled=True)
            size = rings.partition_bytes(self.profile, self.cluster, self.path)
            return rings, dataclasses.replace(self.path, partition_bytes=size, fusion_bytes=size)
        return Servers(servers), self._with_credit(Servers(servers))

    def _with_credit(self, servers: Servers) -> DataPath:
        """The settings, but a larger credit than the automatic one where that leaves links idle."""
        path, cluster = self.path, self.cluster
        largest = servers.partition_bytes(self.profile, cluster, path)
        enough = servers.enough_credit(cluster, largest)
        if path.credit_bytes or 2 * servers.credit(cluster, path, largest) >= enough:
            return path
        return dataclasses.replace(path, credit_bytes=-(-enough >> 20) << 20)

    def alternatives(self, name: str, servers: int) -> Iterator[Settings]:
        """Other sizes of partitions, those that make a difference, then other credits."""
        system, path = self.way(name, servers)
        if isinstance(system, Rings):
            return
        seen = {system.partition_bytes(self.profile, self.cluster, path)}
        for size in _PARTITIONS:
            other = dataclasses.replace(path, partition_bytes=size)
            effective = system.partition_bytes(self.profile, self.cluster, other)
            if effective not in seen:
                seen.add(effective)
                yield {"partition_bytes": size}
        enough = system.enough_credit(self.cluster, system.partition_bytes(self.profile, self.cluster, path))
        for credit in _CREDITS:
            if 2 * credit >= enough:  # else links idle
                yield {"credit_bytes": credit}


def counts(servers: int) -> list[int]:
    """Numbers of CPU servers to try, up to all there are: each, or if they are many, an even choice."""
    if servers <= MANY:
        return list(range(1, servers + 1))
    return sorted({1, *(round(servers * part / PARTS) for part in range(1, PARTS + 1))})


def server_name(servers: int, cluster: Cluster) -> str:
    """The words for a number of CPU servers."""
    noun = "CPU server" if servers == 1 else "CPU servers"
    return f"{servers} {noun}" + (" + workers" if cluster.colocated and servers < cluster.workers else "")
