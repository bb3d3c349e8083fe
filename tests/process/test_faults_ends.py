"""Processes that are lost while the job ends, that never come, or that are only slow."""

from __future__ import annotations

import re
import time

import pytest

from .cases import (
    COORDINATOR,
    LOSSES,
    SILENT,
    Case,
    Settings,
    check_cascade,
    check_survivors,
    check_victim,
    over_every_link,
    run_all,
)
from .faults import PEER_TIMEOUT_S, SLACK_S, FaultyJob
from .test_starts import free_port

JOIN_TIMEOUT_S = 4.0


def while_a_rank_leaves(case: Case, settings: Settings) -> None:
    """Worker 1 has left, but its process is still there; worker 0 waits for it in a round."""
    with FaultyJob(settings=settings) as job:
        job.start_roles()
        job.start_worker(0, "wait")
        job.start_worker(1, "leave")
        job.await_text("left", "worker 1")
        job.await_text("ready", "worker 0")
        since_s = job.send(case.victim, case.how)
        ended = job.ends(since_s + case.within_s + 5, case.victim, "worker 1")
        if case.victim == "worker 1":
            check_cascade(ended, since_s, case)
            return
        in_flight = rf"PeerLost: layer4\.weight \(round 2\) failed on rank 0: {case.blame}"
        check_survivors(ended, since_s, case, {"worker 0": in_flight})
        since_s = job.send("worker 1", "leave")
        end = job.ends(since_s + SLACK_S, case.victim)["worker 1"]
        assert (end.code, end.complaints) == (0, []), end
        check_victim(job, case)


@pytest.mark.slow
@pytest.mark.timeout(120)
@over_every_link
def test_while_a_rank_leaves(settings: Settings) -> None:
    run_all(while_a_rank_leaves, LOSSES, settings)


def when_all_have_left(case: Case, settings: Settings) -> None:
    """The workers leave in order; the stopped role cannot end with them."""
    with FaultyJob(settings=settings) as job:
        job.start_roles()
        for rank in range(2):
            job.start_worker(rank, "rest" if rank == 0 else "shut_down")
        job.await_text("ready")
        job.send(case.victim, "stop")
        since_s = job.send("worker 0", "exit")
        job.send("worker 1", "leave")
        ended = job.ends(since_s + PEER_TIMEOUT_S + SLACK_S + 5, case.victim)
        for rank in range(2):
            end = ended.pop(f"worker {rank}")
            assert (end.code, end.complaints) == (0, []), end
        if case.victim == "server 1":
            end = ended.pop("server 0")
            assert (end.code, end.complaints) == (0, []), end
        check_survivors(ended, since_s, case, {})
        job.send(case.victim, "continue")
        job.ends(time.monotonic() + SLACK_S)
        assert job.left_over() == []


@pytest.mark.slow
@over_every_link
def test_a_role_that_does_not_end_with_the_workers(settings: Settings) -> None:
    server = rf"server 1 \(pid .*\) did not end within {PEER_TIMEOUT_S:g} s of the last worker's leaving"
    run_all(
        when_all_have_left,
        [Case("server 1", "stop", server), Case("coordinator", "stop", COORDINATOR + SILENT)],
        settings,
    )


def who_never_comes(case: Case, settings: Settings) -> None:
    """Worker 1 does not join: it was not started, or has ended before."""
    with FaultyJob(settings={"BYTEPS_JOIN_TIMEOUT": str(JOIN_TIMEOUT_S), **settings}) as job:
        job.start_coordinator()
        since_s = time.monotonic()
        job.start_server(0)
        job.start_server(1)
        job.start_worker(0, "wait")
        if case.how:
            job.start_worker(1, "absent")
            job.await_text("ready", "worker 1")
            job.send("worker 1", case.how)
        ended = job.ends(since_s + JOIN_TIMEOUT_S + SLACK_S + 5)
        ended.pop("worker 1", None)
        for name, end in ended.items():
            assert end.at_s - since_s <= JOIN_TIMEOUT_S + SLACK_S, f"{name}: {end}"
            assert end.code != 0, end
            assert len(end.complaints) == 1, end
            assert re.search(case.blame, end.complaints[0]), end
        assert job.left_over() == []


@pytest.mark.slow
@over_every_link
def test_a_peer_that_never_starts_or_ends_before_it_joins(settings: Settings) -> None:
    blame = rf"the job did not start within {JOIN_TIMEOUT_S:g} s: it waited for worker rank 1"
    ways = ("", "kill", "exit", "exception")
    run_all(who_never_comes, [Case("worker 1", how, blame) for how in ways], settings)


@pytest.mark.slow
def test_a_coordinator_that_never_starts() -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    with FaultyJob(settings={"BYTEPS_COORDINATOR": nowhere, "BYTEPS_JOIN_TIMEOUT": "1"}) as job:
        job.start_server(0)
        job.start_worker(0, "wait")
        ended = job.ends(time.monotonic() + 10)
        for end in ended.values():
            assert end.code != 0, end
            assert len(end.complaints) == 1, end
            error = rf"cannot connect to {nowhere}: .*is the coordinator running"
            assert re.search(error, end.complaints[0]), end


@pytest.mark.slow
def test_a_server_that_waits_for_the_coordinator_can_be_interrupted() -> None:
    settings = {"BYTEPS_COORDINATOR": f"127.0.0.1:{free_port()}", "BYTEPS_STALL_WARNING": "0.1"}
    with FaultyJob(settings=settings) as job:
        job.start_server(0)
        job.await_text("waiting for the coordinator", "server 0")
        since_s = job.send("server 0", "interrupt")
        end = job.ends(since_s + SLACK_S)["server 0"]
        assert (end.code, end.complaints) == (130, []), end


def who_is_only_slow(case: Case, settings: Settings) -> None:
    """A worker is in a C call, with the GIL, far longer than a silent peer is waited for."""
    with FaultyJob(settings=settings) as job:
        job.start_roles()
        for rank in range(2):
            job.start_worker(rank, "hold" if case.victim == f"worker {rank}" else "wait")
        ended = job.ends(time.monotonic() + 3 * PEER_TIMEOUT_S + 20)
        for name, end in ended.items():
            assert (end.code, end.complaints) == (0, []), f"{name}: {end}"
            assert name[:6] != "worker" or "sum 3.0" in end.output


@pytest.mark.slow
@over_every_link
def test_a_worker_that_holds_the_gil_lives(settings: Settings) -> None:
    run_all(who_is_only_slow, [Case(f"worker {rank}", "", "") for rank in range(2)], settings)
