"""Four ranks of one node: push_pull in shared memory against gloo's all_reduce and against plain memory.

The three take turns in the same four processes. The limit is what nobody can save who passes on what he has
summed: each rank copies three quarters of its tensor out, adds three contributions to its own quarter, copies
the sum out and three quarters in, all four at once and through as little memory as the cache likes.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed

import byteps.torch as bps
from benchmarks.common import Row, main, run_job, save_result
from benchmarks.loopback import timed
from benchmarks.peers.answers import wait_until

RANKS = 4
NBYTES = 64 << 20
SMALL_BYTES = 4 << 10
REPEATS = 15
IN_A_ROW = 5
# From agreeing on a moment until it comes and all begin: they leave a barrier, too, milliseconds apart.
LEAD_S = 0.02
SMALL_REPEATS = 301
WARM_UP = 3
PIECE = 128 << 10
Array = npt.NDArray[np.float32]


def measure() -> Sequence[Row]:
    """Run the job and set its medians against the bounds."""
    result = run_job("benchmarks.node", workers=RANKS, servers=1)
    large, small = result["large"], result["small"]
    ours, gloo, limit = ([times[index] for times in large] for index in range(3))
    return (
        Row("64 MiB push_pull", 1e3 * statistics.median(ours), unit="ms"),
        Row("64 MiB, plain sums and copies", 1e3 * statistics.median(limit), unit="ms"),
        Row("64 MiB gloo all_reduce", 1e3 * statistics.median(gloo), unit="ms"),
        Row("64 MiB, push_pull / plain", statistics.median(map(_ratio, ours, limit)), 1.5),
        Row("64 MiB, gloo / push_pull", statistics.median(map(_ratio, gloo, ours)), 2.0, least=True),
        Row("4 KiB push_pull", 1e6 * statistics.median(one for one, _ in small), unit="us"),
        Row("4 KiB gloo all_reduce", 1e6 * statistics.median(one for _, one in small), unit="us"),
    )


def worker(folder: Path) -> None:
    """One of the ranks."""
    bps.init(hierarchical="on")
    meeting = f"file://{folder / 'gloo'}"
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=bps.rank(), world_size=bps.size())
    result = {"large": large_times(), "small": small_times()}
    if bps.rank() == 0:
        save_result(folder, result)
    torch.distributed.destroy_process_group()
    bps.shutdown()


def large_times() -> list[list[float]]:
    """Seconds of push_pull, all_reduce and the plain work, by turns."""
    ours = torch.empty(NBYTES // 4)
    gloo = torch.empty_like(ours)
    plain = Plain()
    work = (
        lambda: bps.push_pull_inplace(ours, average=False, name="large"),
        lambda: torch.distributed.all_reduce(gloo),
        plain.run,
    )
    times = []
    for _ in range(WARM_UP + REPEATS):
        ours.fill_(bps.rank())
        gloo.fill_(bps.rank())
        times.append([after_agreed_moment(one) for one in work])
        if not torch.equal(ours, gloo):
            raise RuntimeError(f"rank {bps.rank()}: push_pull and all_reduce give different sums")
    return on_all_ranks(times)[WARM_UP:]


def small_times() -> list[list[float]]:
    """The same of small tensors, without the plain work."""
    ours, gloo = torch.ones(SMALL_BYTES // 4), torch.ones(SMALL_BYTES // 4)
    times = []
    for _ in range(WARM_UP + SMALL_REPEATS):
        ours_s = timed(lambda: bps.push_pull_inplace(ours, average=True, name="small"))
        times.append([ours_s, timed(lambda: torch.distributed.all_reduce(gloo))])
        gloo.fill_(1)
    return times[WARM_UP:]


def after_agreed_moment(work: Callable[[], object]) -> float:
    """How long after the moment at which all ranks begin work this one is done with it, seconds."""
    moment = torch.tensor(time.monotonic() + LEAD_S, dtype=torch.float64)
    torch.distributed.all_reduce(moment, torch.distributed.ReduceOp.MAX)  # all are done with what was before
    wait_until(moment.item())
    for _ in range(IN_A_ROW):
        work()
    return time.monotonic() - moment.item()


def on_all_ranks(times: list[list[float]]) -> list[list[float]]:
    """Until the last rank is done, for each of those in a row."""
    gathered: list[Any] = [None] * RANKS
    torch.distributed.all_gather_object(gathered, times)
    found: list[list[float]] = (np.array(gathered).max(axis=0) / IN_A_ROW).tolist()
    return found


class Plain:
    """One rank's share of the work, without anybody to wait for."""

    def __init__(self) -> None:
        # Of torch, as the others' are: numpy puts its own on huge pages.
        self._tensor: Array = torch.ones(NBYTES // 4).numpy()
        self._slots: list[Array] = [np.ones(PIECE // 4, np.float32) for _ in range(RANKS)]

    def run(self) -> None:
        """All of it."""
        pieces = self._tensor.reshape(-1, PIECE // 4)
        for number, piece in enumerate(pieces):
            slot = self._slots[number % RANKS]
            if number % RANKS:
                np.copyto(slot, piece)
                np.copyto(piece, slot)
            else:
                for other in self._slots[1:]:
                    np.add(piece, other, out=piece)
                np.copyto(slot, piece)


def _ratio(first: float, second: float) -> float:
    return first / second


if __name__ == "__main__":
    main("One node: 4 ranks", measure, worker)
