"""What a job costs that does nothing: coordinator, two servers and two workers, CPU time over 20 seconds.

The launcher is not counted. The job ends in order at the end, which shows that it was alive all along.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import torch

import byteps.torch as bps
from benchmarks.common import ROOT, Row, job_command, main

WORKERS = SERVERS = 2
IDLE_S = 20.0


def measure() -> Sequence[Row]:
    """Start the job, look at its processes' CPU time before and after, and end it."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for pipe in (*ready_pipes(folder), *go_pipes(folder)):
            os.mkfifo(pipe)
        command = job_command("benchmarks.idle", folder, workers=WORKERS, servers=SERVERS)
        with subprocess.Popen(command, cwd=ROOT, stdout=sys.stderr) as job:
            touch(ready_pipes(folder), "r")
            processes = {label(p): p for p in psutil.Process(job.pid).children(recursive=True)}
            before_s = {name: cpu_seconds(process) for name, process in processes.items()}
            began = time.monotonic()
            time.sleep(IDLE_S)  # workload
            idle_s = time.monotonic() - began
            used_s = {name: cpu_seconds(process) - before_s[name] for name, process in processes.items()}
            touch(go_pipes(folder), "w")
            if job.wait(timeout=60) != 0:
                raise RuntimeError(f"the idle job failed with exit code {job.returncode}")
    rows = [Row(name, 100 * cpu_s / idle_s, unit="% of a core") for name, cpu_s in used_s.items()]
    return [*rows, Row(f"all {len(rows)} together", sum(row.value for row in rows), 1.0, "% of a core")]


def ready_pipes(folder: Path) -> list[Path]:
    """One FIFO per worker, for the word that it is connected."""
    return [folder / f"ready {rank}" for rank in range(WORKERS)]


def go_pipes(folder: Path) -> list[Path]:
    """One FIFO per worker, for the word that the measurement is over."""
    return [folder / f"go {rank}" for rank in range(WORKERS)]


def touch(pipes: Sequence[Path], mode: str) -> None:
    """Open and close FIFOs. Each blocks until its other end is opened too: that is the whole message."""
    for pipe in pipes:
        with pipe.open(mode):
            pass


def cpu_seconds(process: psutil.Process) -> float:
    """User and system time of a process so far."""
    times = process.cpu_times()
    return float(times.user + times.system)


def label(process: psutil.Process) -> str:
    """What a process of the job is, from its command line."""
    words = process.cmdline()
    role = next((word for word in ("coordinator", "server") if word in words), "worker")
    return f"{role} (process {process.pid})"


def worker(folder: Path) -> None:
    """A worker that has done one push_pull and then waits for the measurement to end."""
    bps.init()
    bps.push_pull(torch.ones(1 << 20), name="once")
    bps.barrier()
    touch([ready_pipes(folder)[bps.rank()]], "w")
    touch([go_pipes(folder)[bps.rank()]], "r")
    bps.shutdown()


if __name__ == "__main__":
    main("Idle: coordinator, 2 servers, 2 workers, 20 s", measure, worker)
