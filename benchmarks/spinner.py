"""Does a busy Python thread in every worker slow communication down?

The same pure-Python loop runs either as a thread of each worker, where it holds the GIL, or as a process
beside it, where it only takes the CPU. The two take turns. Each wait has 512 MiB in flight, so it is the
native core that is measured, and the bytes are those that it counted.
"""

from __future__ import annotations

import contextlib
import inspect
import operator
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

import byteps.torch as bps
from benchmarks.common import Row, main, run_job, save_result
from byteps.adapters.current import current
from byteps.communicator.parameter_server import ParameterServer

TENSORS = 8
TENSOR_BYTES = 64 << 20
ROUNDS = 15
SHARE = 0.9


def measure() -> Sequence[Row]:
    """Run the job and compare the two medians."""
    result = run_job("benchmarks.spinner")
    ratio = statistics.median(map(operator.truediv, result["thread"], result["process"]))
    return (
        Row("beside a spinning process", statistics.median(result["process"]) / 1e6, unit="MB/s per worker"),
        Row("beside a spinning thread", statistics.median(result["thread"]) / 1e6, unit="MB/s per worker"),
        Row("thread / process, round by round", ratio, SHARE, least=True),
    )


def worker(folder: Path) -> None:
    """One of the two workers."""
    bps.init(hierarchical="off")
    tensors = [torch.ones(TENSOR_BYTES // 4) for _ in range(TENSORS)]
    throughput(tensors)
    spinners = {"thread": spinning_thread, "process": spinning_process}
    result: dict[str, list[float]] = {kind: [] for kind in spinners}
    for number in range(ROUNDS):
        for kind in sorted(spinners, reverse=bool(number % 2)):
            with spinners[kind]():
                bps.barrier()
                result[kind].append(throughput(tensors))
    if bps.rank() == 0:
        save_result(folder, result)
    bps.shutdown()


def throughput(tensors: Sequence[torch.Tensor]) -> float:
    """Push and pull all tensors at once; bytes sent and received by this worker, per second."""
    before = counted_bytes()
    began = time.perf_counter()
    handles = [bps.push_pull_async_inplace(t, name=f"tensor {i}") for i, t in enumerate(tensors)]
    for handle in handles:
        bps.synchronize(handle)
    took_s = time.perf_counter() - began
    moved = counted_bytes() - before
    # The last read may be counted just after the handle is complete.
    if moved < 0.99 * 2 * TENSORS * TENSOR_BYTES:
        raise RuntimeError(f"the native core counted {moved} bytes, fewer than were given to it")
    return moved / took_s


def spin(stopped: Callable[[], object]) -> None:
    """Compute in pure Python."""
    while not stopped():
        for number in range(10_000):
            number * number


def counted_bytes() -> int:
    """Bytes that this worker's native core has sent and received so far."""
    communicator = current().communicator
    if not isinstance(communicator, ParameterServer):
        raise RuntimeError("this measurement needs servers; start it as python -m benchmarks.spinner")
    return communicator.worker.bytes_sent + communicator.worker.bytes_received


@contextlib.contextmanager
def spinning_thread() -> Iterator[None]:
    """A busy Python thread in this process."""
    stop = threading.Event()
    thread = threading.Thread(target=spin, args=[stop.is_set])
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextlib.contextmanager
def spinning_process() -> Iterator[None]:
    """The same loop in a process of its own, which never stops by itself."""
    program = f"from __future__ import annotations\n{inspect.getsource(spin)}\nspin(bool)"
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        try:
            yield
        finally:
            process.kill()


if __name__ == "__main__":
    main("A busy Python thread in each of 2 workers, 2 servers", measure, worker)
