"""Faults under a launcher: what the user sees, what is left behind, and whether the next job starts."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from .cases import COORDINATOR, LOSSES, Case, Settings, over_every_link, run_all
from .faults import PEER_TIMEOUT_S, SCRIPT, SIGNALS, SLACK_S, FaultyJob
from .jobs import Job, marked, run_byteps, wait_gone
from .test_starts import free_port

GRACE_S = 3.0
"""What the launcher gives survivors."""

TIMES = {"BYTEPS_PEER_TIMEOUT": str(PEER_TIMEOUT_S), "BYTEPS_HEARTBEAT": "0.2", "BYTEPS_LOG_HIDE_TIME": "1"}
LOADER = str(Path(__file__).with_name("loader.py"))


def run_faulty(programs: str, *words: str, settings: Settings | None = None) -> Job:
    """Two workers and two servers; the programs of the workers, by rank."""
    roles = ("-np", "2", "--servers", "2", *words)
    environment = {**TIMES, **(settings or {})}
    return run_byteps("run", *roles, "--", sys.executable, SCRIPT, programs, environment=environment)


def await_lines(job: Job, end: str, count: int) -> None:
    """Read the job's output until so many lines have ended like this."""
    assert job.popen.stdout is not None
    for line in job.popen.stdout:
        count -= line.rstrip().endswith(end)
        if count == 0:
            return
    raise AssertionError(f"the job ended before: {job.finish()}")


def pid_of(job: Job, name: str) -> int:
    """A process of a job: "coordinator", "server 1", "worker 0"."""
    role, _, number = name.partition(" ")
    for pid in marked(job.marker):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        rank = re.search(rb"\0BYTEPS_RANK=(\d*)\0", Path(f"/proc/{pid}/environ").read_bytes())
        is_role = (
            role.encode() in words if role != "worker" else SCRIPT.encode() in words and b"run" not in words
        )
        if is_role and (not number or (rank and rank[1].decode() == number)):
            return pid
    raise AssertionError(f"there is no {name}")


def under_byteps_run(case: Case, settings: Settings) -> None:
    """All survivors say whom they lost; then the launcher ends what is left."""
    job = run_faulty("wait,barrier", settings=settings)
    await_lines(job, "ready", 2)
    os.kill(pid_of(job, case.victim), SIGNALS[case.how])
    since_s = time.monotonic()
    code, _, errors = job.finish()
    took_s = time.monotonic() - since_s
    assert took_s <= case.within_s + GRACE_S + SLACK_S, f"{took_s:.1f} s:\n{errors}"
    assert not job.offspring()
    assert code == (137 if case.how == "kill" else 1), errors
    assert re.search(
        rf"^\[worker 0\] byteps\.errors\.PeerLost: layer4\.weight \(round 2\).*{case.blame}",
        errors,
        re.MULTILINE,
    ), errors
    for name in {"worker 1", "server 0", "server 1"} - {case.victim}:
        assert re.search(rf"^\[{name}\] .*{case.blame}", errors, re.MULTILINE), f"{name}:\n{errors}"
    if case.how == "kill":
        assert f"byteps run: {case.victim} failed first: killed by SIGKILL (exit code 137)" in errors


@pytest.mark.slow
@pytest.mark.timeout(120)
@over_every_link
def test_under_byteps_run(settings: Settings) -> None:
    run_all(under_byteps_run, [case for case in LOSSES if case.how in ("kill", "stop")], settings)


@pytest.mark.slow
def test_the_next_start_works_at_once_also_beside_another_job() -> None:
    port = free_port()
    beside = run_faulty("rest")
    await_lines(beside, "ready", 2)
    for how in ("kill", "stop"):
        job = run_faulty("wait,barrier", "--port", port)
        await_lines(job, "ready", 2)
        os.kill(pid_of(job, "coordinator"), SIGNALS[how])
        assert job.finish()[0] != 0
    killed = run_faulty("busy", "--port", port)
    await_lines(killed, "ready", 2)
    left = killed.offspring()
    killed.popen.kill()
    killed.finish()
    assert all(wait_gone(pid) for pid in left)
    last = run_faulty("barrier", "--port", port)
    code, _, errors = last.finish()
    assert (code, errors) == (0, "")
    assert len(beside.offspring()) == 5
    beside.popen.send_signal(signal.SIGTERM)
    assert beside.finish()[0] == 143
    assert not beside.offspring()


@pytest.mark.slow
def test_processes_of_a_data_loader_end_with_their_trainer() -> None:
    with FaultyJob() as job:
        job.start_roles()
        for rank in range(2):
            job.start_worker(rank, LOADER, "pause" if rank == 1 else "go on")
        job.await_text("ready")
        assert len(job.left_over()) == 3 + 2 * 3
        since_s = job.send("worker 1", "kill")
        case = next(case for case in LOSSES if (case.victim, case.how) == ("worker 1", "kill"))
        left = job.left_over()
        # PyTorch's own processes look for their parent every 5 s.
        assert all(wait_gone(pid, since_s + 10 - time.monotonic()) for pid in left)
        end = job.ends(time.monotonic() + SLACK_S)["worker 0"]
        assert end.at_s - since_s <= 2 * SLACK_S, end
        assert len(end.complaints) == 1, end
        assert re.search(case.blame, end.complaints[0]), end


@pytest.mark.slow
def test_rank_0_of_torchrun_may_hold_the_gil() -> None:
    words = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        LOADER,
        "hold",
    ]
    job = Job(words, {**TIMES, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"})
    code, output, errors = job.finish()
    assert code == 0, errors
    assert output.count("sum 2.0") == 2
    assert not job.offspring()


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_of_torchrun_is_killed(rank: int) -> None:
    """The coordinator is a child of rank 0 and goes with it."""
    torchrun = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": free_port(),
        "WORLD_SIZE": "2",
        "BYTEPS_AUTH_TOKEN": "",
    }
    with FaultyJob(settings=torchrun) as job:
        for number in range(2):
            job.start_torchrun_rank(number, LOADER, "pause" if number == rank else "go on")
        job.await_text("ready")
        job.await_text("sent", f"worker {1 - rank}")
        since_s = job.send(f"worker {rank}", "kill")
        end = job.ends(since_s + 20, f"worker {rank}")[f"worker {1 - rank}"]
        assert end.at_s - since_s <= 2 * SLACK_S, end
        who = COORDINATOR.replace(":", ", a child process of rank 0:") if rank == 0 else r"worker rank 1 \("
        assert re.search(f"PeerLost: .*grad.*round.*{who}", end.errors), end
        assert all(wait_gone(pid, since_s + 10 - time.monotonic()) for pid in job.left_over())
