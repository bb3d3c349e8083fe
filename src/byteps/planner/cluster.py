"""The machines to plan for: how many, how fast their links, what they cost; and what byteps does on them."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from byteps.communicator.all_reduce_sizes import LEAST_COST_S
from byteps.dtypes import CELL_BYTES
from byteps.errors import ConfigError

GBIT = 1e9 / 8
"""Bytes per second of 1 Gbit/s."""
PARTITIONS_IN_FLIGHT = 3
"""For each server that a worker needs at the same time: one pushed, one summed, one coming back."""
CONNECTION_BYTES_PER_S = 3e9
"""What one connection and its I/O threads move at most."""
_ROUNDS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A cluster.

    Attributes:
        workers: machines that compute, each with one link.
        servers: CPU machines that may be had besides.
        link_gbit: rate of a worker's link, Gbit/s each way.
        server_link_gbit: the same of a CPU machine's; 0: as fast as a worker's.
        goodput: share of a link's rate that TCP leaves for payload.
        latency_s: one way through the network, seconds.
        sum_gbit: what a server can add up, Gbit/s of what workers push; infinite: more than its link carries.
        gpus: processes on each worker machine that compute a batch each and share its link.
        colocated: each worker machine runs a server, too.
        worker_price, server_price: of a machine for an hour, in any currency.
    """

    workers: int
    servers: int = 0
    link_gbit: float
    server_link_gbit: float = 0.0
    goodput: float = 0.95
    latency_s: float = 30e-6
    sum_gbit: float = math.inf
    gpus: int = 1
    colocated: bool = True
    worker_price: float = 0.0
    server_price: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what cannot be.

        Raises:
            ConfigError: A value cannot work; the message names it.
        """
        if self.workers < 1 or self.gpus < 1:
            raise ConfigError(f"a cluster of {self.workers} workers with {self.gpus} GPUs each cannot train")
        if self.servers < 0:
            raise ConfigError(f"servers={self.servers} must not be negative")
        for name in ("link_gbit", "sum_gbit"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}={getattr(self, name):g} must be positive")
        for name in ("server_link_gbit", "latency_s", "worker_price", "server_price"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name}={getattr(self, name):g} must be a number from 0 up")
        if not math.isfinite(self.link_gbit):
            raise ConfigError("link_gbit must be finite; without a network there is nothing to plan")
        if not 0 < self.goodput <= 1:
            raise ConfigError(f"goodput={self.goodput:g} must be above 0 and at most 1: a share of the link")
        if not self.colocated and self.servers == 0:
            raise ConfigError(
                "no server anywhere: allow them on the workers' machines, or say how many CPU machines "
                "there are"
            )

    @property
    def bytes_per_s(self) -> float:
        """Payload that a worker's link carries in each direction."""
        return self.goodput * self.link_gbit * GBIT

    @property
    def server_bytes_per_s(self) -> float:
        """Payload that a CPU machine can take in, and give out, at once."""
        link = self.server_link_gbit or self.link_gbit
        return min(self.goodput * link, self.sum_gbit) * GBIT

    def price(self, servers: int) -> float:
        """Of all workers and some CPU machines for an hour."""
        return self.workers * self.worker_price + servers * self.server_price

    def at(self, link_gbit: float) -> Cluster:
        """The same with all links faster or slower."""
        factor = link_gbit / self.link_gbit
        server_link = factor * self.server_link_gbit
        return dataclasses.replace(self, link_gbit=link_gbit, server_link_gbit=server_link)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPath:
    """How byteps moves bytes: its settings, and what its data path adds to the links' time.

    Attributes:
        partition_bytes: as the setting of that name.
        credit_bytes: as the setting of that name; 0: chosen by the rate.
        policy: as the setting ``scheduling``.
        fusion_bytes: smaller tensors are sent together, up to this size. Only all-reduce does that.
        connections: as the setting of that name; 0: as many as the link needs.
        overhead_s: time of an I/O thread for a frame, seconds; threads and links work at the same time.
        collective_s: time that a rank's threads spend on a collective besides, seconds.
        chunk_s: a frame's time on the link, seconds.
        lag_s: how far ahead of the link frames are handed over, seconds: 1 ms and the last frame.
        least_chunk_bytes, most_chunk_bytes: limits of a frame.
        slack_s: the time that the automatic credit adds to a round trip.
        least_credit_bytes, most_credit_bytes: its limits.
        whole_tensors: partitions are whole tensors, whatever their size.
    """

    partition_bytes: int = 128 << 10
    credit_bytes: int = 0
    policy: str = "priority"
    fusion_bytes: int = 0
    connections: int = 0
    overhead_s: float = 10e-6
    collective_s: float = LEAST_COST_S
    chunk_s: float = 1.5e-3
    lag_s: float = 2e-3
    least_chunk_bytes: int = CELL_BYTES
    most_chunk_bytes: int = 512 << 10
    slack_s: float = 5e-3
    least_credit_bytes: int = 64 << 10
    most_credit_bytes: int = 16 << 20
    whole_tensors: bool = False

    def chunk_bytes(self, bytes_per_s: float) -> int:
        """Bytes of a frame on a link of this rate, in whole cells."""
        cells = int(self.chunk_s * bytes_per_s / self.least_chunk_bytes)
        return min(max(1, cells) * self.least_chunk_bytes, self.most_chunk_bytes)

    def __post_init__(self) -> None:
        """Refuse what cannot be.

        Raises:
            ConfigError: A setting cannot work; the message names it.
        """
        if self.partition_bytes < 1:
            raise ConfigError(f"partition_bytes={self.partition_bytes} must be positive")
        for name in ("credit_bytes", "connections"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name}={getattr(self, name)} must not be negative; 0 is automatic")

    def lanes(self, bytes_per_s: float) -> int:
        """Connections between a worker and a server, each with threads of its own."""
        return self.connections or max(1, math.ceil(bytes_per_s / CONNECTION_BYTES_PER_S))

    def handed_over_s(self, bytes_per_s: float) -> float:
        """How much of a link's time may be handed over before it is due, seconds."""
        return max(self.lag_s, 2 * self.chunk_bytes(bytes_per_s) / bytes_per_s) if self.lag_s else 0.0

    def credit(
        self, bytes_per_s: float, round_trip_s: float, largest_bytes: int, away_s: float, busy_servers: int
    ) -> int:
        """Bytes that may be in flight: as set, or what the automatic credit settles at.

        It follows the rate that is reached, which it may limit itself.

        Args:
            bytes_per_s: What the links could carry.
            round_trip_s: Of a byte on idle links.
            largest_bytes: The largest partition.
            away_s: For how long a partition holds its credit when all links are busy.
            busy_servers: How many servers a worker needs at the same time to keep its link full.
        """
        if self.credit_bytes:
            return self.credit_bytes
        least = max(self.least_credit_bytes, PARTITIONS_IN_FLIGHT * busy_servers * largest_bytes)
        window = self.most_credit_bytes
        for _ in range(_ROUNDS):
            rate = min(bytes_per_s, window / max(away_s, 1e-9))
            window = min(max(int(rate * (round_trip_s + self.slack_s)), least), self.most_credit_bytes)
        return window


IDEAL = DataPath(
    credit_bytes=1 << 62,
    overhead_s=0.0,
    collective_s=0.0,
    lag_s=0.0,
    least_chunk_bytes=1 << 62,
    most_chunk_bytes=1 << 62,
    whole_tensors=True,
    policy="fifo",
)
"""No overhead; whole tensors, first come first served: what the closed forms of that kind describe."""
