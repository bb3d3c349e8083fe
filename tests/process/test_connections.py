"""A job over TCP, each worker on a host of its own, goes over to a second connection, and sums stay right.

Loopback addresses stand for hosts.
"""

from __future__ import annotations

import sys
from pathlib import Path

from .jobs import Job, run_byteps

STEPS = 30
PUSH_PULL = f"""
import torch
import byteps.torch as bps
from byteps.adapters.current import current

bps.init()
used = []
for step in range({STEPS}):
    tensors = [torch.full((length,), bps.rank() + step + 1.0) for length in (7, 400_000, 100_000)]
    handles = [bps.push_pull_async_inplace(t, average=False, name=str(t.numel())) for t in tensors]
    for handle, tensor in zip(handles, tensors):
        bps.synchronize(handle)
        assert torch.all(tensor == 3 + 2 * step), step
    used.append(current().communicator.connections)
print("used", used[0], used[-1])
bps.shutdown()
"""


def on(host: int, **more: str) -> dict[str, str]:
    """The environment of a process on a host."""
    shared = {"BYTEPS_AUTH_TOKEN": "y" * 32, "OMP_NUM_THREADS": "1", "BYTEPS_TRANSPORT": "tcp"}
    return {**shared, "BYTEPS_HIERARCHICAL": "off", "BYTEPS_BIND_HOST": f"127.0.0.{host}", **more}


def test_a_second_connection_is_used_where_one_is_seen_to_be_fast(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PUSH_PULL)
    counts = ["--num-workers", "2", "--num-servers", "1"]
    coordinator = run_byteps("coordinator", *counts, environment=on(9, BYTEPS_CONNECTION_RATE="0"))
    jobs = [coordinator]
    try:
        assert coordinator.popen.stdout is not None
        told = {"BYTEPS_COORDINATOR": coordinator.popen.stdout.readline().split("=")[1].strip()}
        jobs.append(run_byteps("server", environment=on(8, **told)))
        command = [sys.executable, str(tmp_path / "train.py")]
        for rank in range(2):
            jobs.append(Job(command, on(2 + rank, BYTEPS_RANK=str(rank), BYTEPS_SIZE="2", **told)))
        ends = [job.finish() for job in jobs]
        assert [code for code, _, _ in ends] == [0] * 4, ends
        assert [output for _, output, _ in ends[2:]] == ["used 1 2\n"] * 2
    finally:
        for job in jobs:
            job.kill()
