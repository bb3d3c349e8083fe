"""Every way to lose a process, of every role, at every moment: the others end, and say whom they lost."""

from __future__ import annotations

import os
import time

import pytest

from .cases import (
    LOSSES,
    UCX_SM,
    UCX_TCP,
    Case,
    Settings,
    check_cascade,
    check_survivors,
    check_victim,
    lose_in_traffic,
    over_every_link,
    run_all,
)
from .faults import FaultyJob


def in_mid_round(case: Case, settings: Settings) -> None:
    """Worker 0 waits in a round, and asks whom it waits for; worker 1 waits at a barrier."""
    with FaultyJob(settings={"BYTEPS_STALL_WARNING": "0.5", **settings}) as job:
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


def before_the_start(case: Case, settings: Settings) -> None:
    """All but worker 2 have joined; if nobody can notice the fault, worker 2 completes the job."""
    with FaultyJob(workers=3, settings=settings) as job:
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
@over_every_link
def test_in_mid_round(settings: Settings) -> None:
    run_all(in_mid_round, LOSSES, settings)


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"BYTEPS_TRANSPORT": "shm"}, id="shm"),
        pytest.param({"BYTEPS_TRANSPORT": "tcp"}, id="tcp"),
        pytest.param(UCX_TCP, id="ucx-tcp", marks=pytest.mark.rdma),
        pytest.param(UCX_SM, id="ucx-sm", marks=pytest.mark.rdma),
    ],
)
def test_in_traffic(settings: Settings) -> None:
    run_all(lose_in_traffic, [case for case in LOSSES if case.how in ("kill", "stop")], settings)
    assert not [name for name in os.listdir("/dev/shm") if "byteps" in name]


@pytest.mark.slow
@pytest.mark.timeout(120)
@over_every_link
def test_before_the_job_is_complete(settings: Settings) -> None:
    run_all(before_the_start, LOSSES, settings)
