"""Every way to lose a process, of every role, at every moment: the others end, and say whom they lost."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from .faults import PEER_TIMEOUT_S, SLACK_S, Ended, FaultyJob

AT_ONCE = 4
"""Cases that run side by side."""

RANK, SERVER = (rf"{role} {{}} \(pid \d+ on \S+\) was lost: " for role in ("worker rank", "server"))
CLOSED, SILENT = r"connection (closed|broke)", rf"no heartbeat for {PEER_TIMEOUT_S:g} s"
ALL = {"kill": CLOSED, "exit": CLOSED, "exception": CLOSED, "stop": SILENT}
OF_ROLES = {"kill": CLOSED, "exit": CLOSED, "interrupt": CLOSED, "stop": SILENT}


@dataclass(frozen=True, slots=True)
class Case:
    """One fault and what must come of it.

    Attributes:
        victim: the process.
        how: what happens to it: one of ``SIGNALS``.
        blame: what each survivor's one error must contain.
    """

    victim: str
    how: str
    blame: str

    @property
    def within_s(self) -> float:
        """How soon the survivors must have ended."""
        return SLACK_S + (PEER_TIMEOUT_S if self.how == "stop" else 0)


def cases(victim: str, who: str, hows: dict[str, str]) -> list[Case]:
    """Cases of one victim."""
    return [Case(victim, how, who + reason) for how, reason in hows.items()]


LOSSES = [
    *cases("worker 1", RANK.format(1), ALL),
    *cases("server 1", SERVER.format(1), OF_ROLES),
    *cases("coordinator", "lost the coordinator: ", OF_ROLES),
]


def run_all(run: Callable[[Case], None], them: Iterable[Case]) -> None:
    """Run cases side by side; fail with all that went wrong."""
    failures = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for case, future in [(case, pool.submit(run, case)) for case in them]:
            if (error := future.exception()) is not None:
                failures.append(f"{case}:\n{error}")
    assert not failures, "\n\n".join(failures)


def check_survivors(ended: dict[str, Ended], since_s: float, case: Case, blames: dict[str, str]) -> None:
    """All have ended in time, with one error that blames whom it should, and a code that says so."""
    for name, end in ended.items():
        assert end.at_s - since_s <= case.within_s, f"{name} took {end.at_s - since_s:.1f} s: {end}"
        assert end.code != 0, f"{name}: {end}"
        assert len(end.complaints) == 1, f"{name}: {end}"
        blame = blames.get(name, case.blame)
        assert re.search(blame, end.complaints[0]), f"{name} does not say {blame!r}: {end}"


def check_victim(job: FaultyJob, case: Case) -> None:
    """One that was stopped ends with one error when it goes on. Then nothing is left."""
    if case.how == "stop":
        assert job.processes[case.victim].ended(0) is None
        since_s = job.send(case.victim, "continue")
        end = job.ends(since_s + SLACK_S)[case.victim]
        assert (end.code, len(end.complaints)) == (1, 1), end
    assert job.left_over() == []


def in_mid_round(case: Case) -> None:
    """Worker 0 waits in a round, worker 1 at a barrier."""
    with FaultyJob() as job:
        job.start_roles()
        job.start_worker(0, "wait")
        job.start_worker(1, "barrier")
        job.await_text("ready")
        since_s = job.send(case.victim, case.how)
        stopped = [case.victim] if case.how == "stop" else []
        ended = job.ends(since_s + case.within_s + 5, *stopped)
        ended.pop(case.victim, None)
        blames = {"worker 0": rf"PeerLost: layer4\.weight \(round 2\) failed on rank 0: {case.blame}"}
        if (case.victim, case.how) == ("worker 1", "exit"):
            # It left in order. The one that needs it fails, and so is lost to the others.
            blames = dict.fromkeys(ended, RANK.format(0))
            blames["worker 0"] = (
                r"PeerLeft: layer4\.weight \(round 2\) failed on rank 0: rank 1 has shut down"
            )
        check_survivors(ended, since_s, case, blames)
        check_victim(job, case)


def in_traffic(case: Case) -> None:
    """All links are full."""
    with FaultyJob(workers=3) as job:
        job.start_roles()
        for rank in range(3):
            job.start_worker(rank, "busy")
        job.await_text("ready")
        since_s = job.send(case.victim, case.how)
        ended = job.ends(since_s + case.within_s + 5, case.victim)
        in_flight = rf"PeerLost: layer4\.weight \(round \d+\) failed on rank \d: {case.blame}"
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
