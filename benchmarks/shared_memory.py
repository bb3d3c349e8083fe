"""Two workers and one server on this machine: through shared memory, by TCP, and gloo in the same processes.

The job runs by each transport in turns, so that both see the same machine. With the large tensor gloo's
all_reduce takes turns with push_pull, call by call. With the small one push_pull follows on push_pull: after
anything else the ranks would begin at different times, and one wait for the other longer than for the bytes.
The limit is also given: the plain copies that this needs, on the cores that there are, at the speed of one
core's copy of as many bytes.
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
from benchmarks.loopback import LARGE_BYTES, SMALL_BYTES, WARM_UP, alternate, timed

LARGE_PAIRS, SMALL_CALLS = 15, 501
TURNS = 7
WORKERS = 2
# Each worker copies in and out, the server takes each contribution; workers read the sum where it was made.
COPIES = 3 * WORKERS


def measure() -> Sequence[Row]:
    """Run the jobs and set the medians of all turns against the bounds."""
    large: dict[str, list[tuple[float, float]]] = {"tcp": [], "shm": []}
    small_s: dict[str, list[float]] = {"tcp": [], "shm": []}
    copy_s = []
    for _ in range(TURNS):
        for transport in large:
            result = run_job(
                "benchmarks.shared_memory",
                workers=WORKERS,
                servers=1,
                options=("--transport", transport, "--hierarchical", "off"),
            )
            copy_s += result["copy"]
            large[transport] += result["large"]
            small_s[transport] += result["small"]
    return _rows(large, small_s, statistics.median(copy_s))


def _rows(
    large: dict[str, list[tuple[float, float]]], small: dict[str, list[float]], copy_s: float
) -> Sequence[Row]:
    cores = min(len(os.sched_getaffinity(0)), WORKERS + 1)
    limit_s = COPIES * copy_s / cores
    large_s = {way: statistics.median(ours for ours, _ in times) for way, times in large.items()}
    gloo_s = statistics.median(gloo for _, gloo in large["shm"])
    small_s = {way: statistics.median(times) for way, times in small.items()}
    return (
        Row("64 MiB by TCP", 1e3 * large_s["tcp"], unit="ms"),
        Row("64 MiB through memory", 1e3 * large_s["shm"], unit="ms"),
        Row("64 MiB gloo all_reduce", 1e3 * gloo_s, unit="ms"),
        Row(f"64 MiB, its {COPIES} copies on the cores", 1e3 * limit_s, unit="ms"),
        Row("64 MiB, TCP / memory", large_s["tcp"] / large_s["shm"], 2.0, least=True),
        Row("64 MiB, memory / gloo", statistics.median(ours / gloo for ours, gloo in large["shm"]), 1.0),
        Row("4 KiB by TCP", 1e6 * small_s["tcp"], unit="us"),
        Row("4 KiB through memory", 1e6 * small_s["shm"], unit="us"),
        Row("4 KiB, memory / TCP", small_s["shm"] / small_s["tcp"], 0.8),
    )


def worker(folder: Path) -> None:
    """One of the two workers."""
    torch.set_num_threads(1)
    bps.init()
    meeting = f"file://{folder / 'gloo'}"
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=bps.rank(), world_size=bps.size())
    result = {
        "large": alternate(LARGE_BYTES, LARGE_PAIRS),
        "small": small_times(),
        "copy": copies(),
    }
    if bps.rank() == 0:
        save_result(folder, result)
    torch.distributed.destroy_process_group()
    bps.shutdown()


def small_times() -> list[float]:
    """Times of push_pull of a small tensor, one call after the other, seconds."""
    tensor = torch.ones(SMALL_BYTES // 4)
    times = [
        timed(lambda: bps.push_pull_inplace(tensor, average=True, name="small"))
        for _ in range(WARM_UP + SMALL_CALLS)
    ]
    if not torch.equal(tensor, torch.ones_like(tensor)):
        raise RuntimeError(f"rank {bps.rank()}: the average of ones is not one")
    return times[WARM_UP:]


def copies() -> list[float]:
    """Times of copying the large tensor, with the other worker waiting, seconds."""
    source, to = torch.ones(LARGE_BYTES // 4), torch.zeros(LARGE_BYTES // 4)
    times = [timed(lambda: to.copy_(source)) for _ in range(7)] if bps.rank() == 0 else []
    torch.distributed.barrier()
    return times[2:]


if __name__ == "__main__":
    main("Shared memory: 2 workers, 1 server", measure, worker)
