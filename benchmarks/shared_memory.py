"""Two workers and one server on this machine: through shared memory, by TCP, and gloo in the same processes.

The job runs by each transport in turns, so that both see the same machine; gloo's all_reduce takes turns with
push_pull, call by call. The limit is also given: the plain copies that this needs, on the cores that there
are, at the speed of one core's copy of as many bytes.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed

import byteps.torch as bps
from benchmarks.common import Row, main, run_job, save_result
from benchmarks.loopback import LARGE_BYTES, SMALL_BYTES, alternate, timed

LARGE_PAIRS, SMALL_PAIRS = 15, 301
TURNS = 3
WORKERS = 2
# Each worker copies in and out, the server takes each contribution and gives each worker the sum.
COPIES = 4 * WORKERS


def measure() -> Sequence[Row]:
    """Run the jobs and set the medians of all turns against the bounds."""
    times: dict[str, dict[str, list[tuple[float, float]]]] = {"tcp": {}, "shm": {}}
    copy_s = []
    for _ in range(TURNS):
        for transport, sizes in times.items():
            result = run_job(
                "benchmarks.shared_memory",
                workers=WORKERS,
                servers=1,
                options=("--transport", transport, "--hierarchical", "off"),
            )
            copy_s += result["copy"]
            for size in ("large", "small"):
                sizes.setdefault(size, []).extend(result[size])
    return _rows(times["tcp"], times["shm"], statistics.median(copy_s))


def _rows(
    tcp: dict[str, list[tuple[float, float]]], shm: dict[str, list[tuple[float, float]]], copy_s: float
) -> Sequence[Row]:
    def ours(times: list[tuple[float, float]]) -> float:
        return statistics.median(mine for mine, _ in times)

    cores = min(len(os.sched_getaffinity(0)), WORKERS + 1)
    limit_s = COPIES * copy_s / cores
    large_gloo_s = statistics.median(gloo for _, gloo in shm["large"])
    return (
        Row("64 MiB by TCP", 1e3 * ours(tcp["large"]), unit="ms"),
        Row("64 MiB through memory", 1e3 * ours(shm["large"]), unit="ms"),
        Row("64 MiB gloo all_reduce", 1e3 * large_gloo_s, unit="ms"),
        Row("64 MiB, its 8 copies on the cores", 1e3 * limit_s, unit="ms"),
        Row("64 MiB, TCP / memory", ours(tcp["large"]) / ours(shm["large"]), 2.0, least=True),
        Row("64 MiB, memory / gloo", statistics.median(a / b for a, b in shm["large"]), 1.0),
        Row("4 KiB by TCP", 1e6 * ours(tcp["small"]), unit="us"),
        Row("4 KiB through memory", 1e6 * ours(shm["small"]), unit="us"),
        Row("4 KiB, memory / TCP", ours(shm["small"]) / ours(tcp["small"]), 0.8),
    )


def worker(folder: Path) -> None:
    """One of the two workers."""
    torch.set_num_threads(1)
    bps.init()
    meeting = f"file://{folder / 'gloo'}"
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=bps.rank(), world_size=bps.size())
    result = {
        "large": alternate(LARGE_BYTES, LARGE_PAIRS),
        "small": alternate(SMALL_BYTES, SMALL_PAIRS),
        "copy": copies(),
    }
    if bps.rank() == 0:
        save_result(folder, result)
    torch.distributed.destroy_process_group()
    bps.shutdown()


def copies() -> list[float]:
    """Times of copying the large tensor, with the other worker waiting, seconds."""
    source, to = torch.ones(LARGE_BYTES // 4), torch.zeros(LARGE_BYTES // 4)
    times = [timed(lambda: to.copy_(source)) for _ in range(7)] if bps.rank() == 0 else []
    torch.distributed.barrier()
    return times[2:]


if __name__ == "__main__":
    main("Shared memory: 2 workers, 1 server", measure, worker)
