"""Models, clusters and data paths for the planner's tests, and strategies that draw them."""

from __future__ import annotations

import dataclasses

from hypothesis import strategies

from byteps.dtypes import GRAIN_BYTES
from byteps.planner.cluster import GBIT, IDEAL, Cluster, DataPath
from byteps.planner.profile import Layer, Profile

CELL = GRAIN_BYTES
FRICTIONLESS = dataclasses.replace(
    IDEAL, whole_tensors=False, policy="priority", partition_bytes=CELL, credit_bytes=2 * CELL
)
"""No overhead, the smallest partitions, and a credit that just keeps both directions busy."""


def model(*layers: tuple[float, float, float]) -> Profile:
    """A model of layers: cells of one tensor, forward and backward time in seconds."""
    found = [
        Layer(f"layer{number}", (int(cells * CELL),), forward_s, backward_s)
        for number, (cells, forward_s, backward_s) in enumerate(layers)
    ]
    return Profile("test", tuple(found), 1, "made up")


def cluster(workers: int, servers: int, cells_per_s: float = 1.0, latency_s: float = 0.0) -> Cluster:
    """A cluster whose workers' links carry so many cells per second.

    If there are servers, they are apart, and so fast that each takes the bytes of all workers at once, as the
    closed forms have it.
    """
    link_gbit = cells_per_s * CELL / GBIT
    return Cluster(
        workers=workers,
        servers=servers,
        link_gbit=link_gbit,
        server_link_gbit=workers * link_gbit,
        goodput=1.0,
        latency_s=latency_s,
        colocated=servers == 0,
    )


def path(overhead_s: float, partition_cells: int, in_flight: int) -> DataPath:
    """Byteps's data path with some settings."""
    size = partition_cells * CELL
    return DataPath(overhead_s=overhead_s, partition_bytes=size, credit_bytes=in_flight * size)


_times = strategies.floats(0, 2)
profiles = strategies.lists(
    strategies.tuples(strategies.floats(0.05, 12), _times, _times), min_size=1, max_size=8
).map(lambda layers: model(*layers))
"""Models whose layers have up to twelve cells and compute up to two seconds each way."""
