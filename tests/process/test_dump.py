"""SIGUSR1 to a job that hangs: every process says what is in flight, whom it waits for, and where it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .jobs import THROUGH_SERVERS, Job, dump, run_byteps

STUCK = """
import os, sys, threading
import torch
import byteps.torch as bps

bps.init()
bps.push_pull(torch.ones(300_000), name="layer4.weight")
if bps.rank() == 0:
    print("waiting", os.getpid(), flush=True)
    bps.push_pull(torch.ones(300_000), name="layer4.weight")
else:
    while not os.path.exists(sys.argv[1]):
        threading.Event().wait(0.05)
    bps.push_pull(torch.ones(300_000), name="layer4.weight")
print("done", flush=True)
"""


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Two workers, one of which is late until the file ``go`` is there."""
    script = tmp_path / "train.py"
    script.write_text(STUCK)
    words = ("run", "-np", "2", "--servers", "1", str(script), str(tmp_path / "go"))
    return run_byteps(*words, environment=THROUGH_SERVERS)


def test_a_worker_that_waits_tells_all(job: Job, tmp_path: Path) -> None:
    assert job.popen.stdout is not None
    pid = int(job.popen.stdout.readline().split()[-1])
    text = dump(job, pid, "frames sent")
    assert "train.py" in text, "the stack of the main thread, which waits"
    assert "rank 0 of 2: 1 tensor in flight" in text
    waits = r"waiting for rank 1, last heard \d\.\d s ago$"
    assert re.search(
        rf"step 2, layer4\.weight: 1\.1 MiB, in flight for \d+\.\d s, \d+ partitions unresolved, {waits}",
        text,
        re.MULTILINE,
    ), text
    (tmp_path / "go").touch()
    code, output, _ = job.finish()
    assert code == 0
    assert output.count("done") == 2


def test_the_launcher_passes_the_signal_on(job: Job, tmp_path: Path) -> None:
    assert job.popen.stdout is not None
    job.popen.stdout.readline()
    dump(
        job,
        job.popen.pid,
        r"^\[worker 0\]   step 2, layer4\.weight: .* waiting for rank 1, last heard",
        r"^\[worker 1\]   rank 1 of 2: 0 tensors in flight$",
        r"^\[server 0\]   step 2, layer4\.weight: partitions 0-\d+, 1\.1 MiB, waiting for rank 1$",
        r"^\[coordinator\]   running, with 2 workers and 1 server$",
        *(rf"^\[{name}\] byteps: .* Python stacks:$" for name in ("worker [01]", "server 0", "coordinator")),
    )
    (tmp_path / "go").touch()
    assert job.finish()[0] == 0
