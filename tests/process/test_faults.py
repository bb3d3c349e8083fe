"""Every way to lose a process, of every role, at every moment: the others end, and say whom they lost."""

from __future__ import annotations

import time

import pytest

from .cases import LOSSES, Case, check_cascade, check_survivors, check_victim, run_all
from .faults import FaultyJob


def in_mid_round(case: Case) -> None:
    """Worker 0 waits in a round, and asks whom it waits for; worker 1 waits at a barrier."""
    with FaultyJob(settings={"BYTEPS_STALL_WARNING": "0.5"}) as job:
        job.start_roles()
        job.start_worker(0, "wait")
        job.start_worker(1, "barrier")
        job.await_text("ready")
        since_s = job.send(case.victim, case.how)
        stopped = [case.victim] if case.how == "stop" else []
        ended = job.ends(since_s + case.within_s + 5, *stopped)
        ended.pop(case.victim, None)
        if (case.victim, case.how) == ("worker 1", "exit"):
            check_cascade(ended, since_s, case)
        else:
            in_flight = rf"PeerLost: layer4\.weight \(round 2\) failed on rank 0: {case.blame}"
            check_survivors(ended, since_s, case, {"worker 0": in_flight})
        check_victim(job, case)


def in_traffic(case: Case, settings: dict[str, str] | None = None) -> None:
    """All links are full."""
    with FaultyJob(workers=3, settings=settings or {}) as job:
        job.start_roles()
        for rank in range(3):
            job.start_worker(rank, "busy")
        job.await_text("ready")
        since_s = job.send(case.victim, case.how)
        ended = job.ends(since_s + case.within_s + 5, case.victim)
        in_flight = rf"PeerLost: (layer4\.weight \(round \d+\) failed on rank \d: )?{case.blame}"
        check_survivors(ended, since_s, case, {f"worker {rank}": in_flight for rank in range(3)})
        check_victim(job, case)


def before_the_start(case: Case) -> None:
    """All but worker 2 have joined; if nobody can notice the fault, worker 2 completes the job."""
    with FaultyJob(workers=3) as job:
        job.start_roles()
        job.start_worker(0, "wait")
        job.start_worker(1, "wait")
        job.await_joined("worker 0", "worker 1", "server 0", "server 1")
        since_s = job.send(case.victim, case.how)
        if case.how == "stop" and case.victim != "coordinator":
            job.start_worker(2, "wait")
            job.await_joined("worker 2")
            since_s = time.monotonic()
        stopped = [case.victim] if case.how == "stop" else []
        ended = job.ends(since_s + case.within_s + 5, *stopped)
        ended.pop(case.victim, None)
        check_survivors(ended, since_s, case, {})
        check_victim(job, case)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_in_mid_round() -> None:
    run_all(in_mid_round, LOSSES)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_in_traffic() -> None:
    run_all(in_traffic, [case for case in LOSSES if case.how in ("kill", "stop")])


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_before_the_job_is_complete() -> None:
    run_all(before_the_start, LOSSES)
