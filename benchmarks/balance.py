"""How evenly the layers of published models spread over servers, at default settings.

Nothing is sent: the coordinator's own placement is asked where each gradient would go.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.common import Row, main
from byteps.config import Config
from byteps.placement import Placer
from byteps.planner.profile import FP32_BYTES, shipped_layers

SERVERS = range(2, 17)
BOUND = 1.02


def measure() -> Sequence[Row]:
    """One row per model: the fullest server over the mean, the worst number of servers."""
    rows = []
    for name, layers in shipped_layers().items():
        sizes = [FP32_BYTES * elements for layer in layers for _, elements in layer["tensors"]]
        worst, servers = max((imbalance(sizes, servers), servers) for servers in SERVERS)
        rows.append(Row(f"{name}, worst with {servers} servers", worst, BOUND, "x the mean"))
    return rows


def imbalance(sizes: Sequence[int], servers: int) -> float:
    """Bytes on the fullest server over the mean."""
    placer = Placer(servers, lanes=1, partition_bytes=Config().partition_bytes)
    placer.place(sizes)
    return max(placer.loads) / (sum(sizes) / servers)


if __name__ == "__main__":
    main("Balance over 2..16 servers, fp32 gradients", measure)
