"""Many jobs, in one process and one after another, leave nothing behind."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from .faults import SCRIPT
from .jobs import TIMEOUT_S, Job, run_byteps, wait_gone
from .test_starts import free_port

ROOT = Path(__file__).resolve().parents[2]
CYCLES, JOBS, TORCHRUN_CYCLES = 1000, 20, 5
GROWTH_KB = 10_000
"""Over all cycles. What the allocator holds varies by 4 MB; a buffer kept per cycle would be twice this."""

TORCHRUN = """
import gc, os, threading
from pathlib import Path
import torch
import byteps.torch as bps

def cycle():
    bps.init()
    assert bps.push_pull(torch.ones(1000), average=False, name="x")[0] == 2
    bps.shutdown()

def held():
    gc.collect()
    return len(os.listdir("/proc/self/fd")), threading.active_count()

cycle()
before = held()
for _ in range({cycles}):
    cycle()
children = Path(f"/proc/self/task/{{os.getpid()}}/children").read_text().split()
print("held", before == held(), before, held(), len(children), flush=True)
"""


def finish(job: Job, timeout_s: float = TIMEOUT_S) -> str:
    """Wait for a job that must end well, without a word of complaint, and leave nothing; its output."""
    code, output, errors = job.finish(timeout_s)
    assert (code, errors) == (0, "")
    assert all(wait_gone(pid) for pid in job.offspring())
    return output


@pytest.mark.slow
@pytest.mark.timeout(160)
def test_cycles_of_init_and_shutdown_in_one_process() -> None:
    # Memory that is freed goes back to where the next cycle, on other threads, finds it.
    environment = {"PYTHONPATH": str(ROOT), "MALLOC_ARENA_MAX": "1"}
    words = [sys.executable, "-m", "tests.process.cycles", str(CYCLES)]
    output = finish(Job(words, environment, cwd=ROOT), timeout_s=150.0)
    first, last = ([int(word) for word in line.split()[1:]] for line in output.splitlines())
    assert last[:2] == first[:2], "descriptors and threads"
    assert last[2] - first[2] < GROWTH_KB, "kilobytes of memory"
    assert last[3] - first[3] < CYCLES / 10, "objects of Python"


@pytest.mark.slow
def test_cycles_under_torchrun_leave_no_role_behind(tmp_path: Path) -> None:
    script = tmp_path / "cycles.py"
    script.write_text(TORCHRUN.format(cycles=TORCHRUN_CYCLES))
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    shared |= {"MASTER_PORT": free_port(), "TORCH_CPP_LOG_LEVEL": "ERROR", "OMP_NUM_THREADS": "1"}
    ranks = [
        Job([sys.executable, str(script)], {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(2)
    ]
    for rank, job in enumerate(ranks):
        words = finish(job).split()
        assert words[1] == "True", words
        # Rank 0's last coordinator and server may be about to end.
        assert int(words[-1]) <= (2 if rank == 0 else 0), words


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_jobs_in_a_row_leave_no_process_port_or_file(tmp_path: Path) -> None:
    shared_memory = set(os.listdir("/dev/shm"))
    environment: Mapping[str, str] = {"TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    port = free_port()
    for _ in range(JOBS):
        words = ("run", "-np", "2", "--servers", "1", "--port", port, "--", sys.executable, SCRIPT, "barrier")
        assert finish(run_byteps(*words, environment=environment)).count("ready") == 2
    assert list(tmp_path.iterdir()) == []
    mine = [name for name in set(os.listdir("/dev/shm")) - shared_memory if "byteps" in name]
    assert mine == []
