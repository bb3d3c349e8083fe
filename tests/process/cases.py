"""The faults that every role may meet with, and what must come of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from .faults import PEER_TIMEOUT_S, SLACK_S, Ended, FaultyJob

AT_ONCE = 4
"""Cases that run side by side."""

Settings = dict[str, str]
UCX_TCP, UCX_SM = ({"BYTEPS_TRANSPORT": "ucx", "UCX_TLS": transport} for transport in ("tcp", "sm"))
# The suite itself has a selection over UCX, in test_ucx.py; all of it takes minutes.
over_every_link = pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="auto"),
        pytest.param(UCX_TCP, id="ucx-tcp", marks=pytest.mark.rdma),
        pytest.param(UCX_SM, id="ucx-sm", marks=pytest.mark.rdma),
    ],
)

RANK, SERVER = (rf"{role} {{}} \(pid \d+ on \S+\) was lost: " for role in ("worker rank", "server"))
COORDINATOR = "lost the coordinator: "
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
    *cases("coordinator", COORDINATOR, OF_ROLES),
]


def run_all(run: Callable[[Case, Settings], None], them: Iterable[Case], settings: Settings) -> None:
    """Run cases side by side, with variables for all processes; fail with all that went wrong."""
    failures = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for case, future in [(case, pool.submit(run, case, settings)) for case in them]:
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


def check_cascade(ended: dict[str, Ended], since_s: float, case: Case) -> None:
    """Worker 0 fails because rank 1 has left in order, and so is lost to the others."""
    first = {"worker 0": ended.pop("worker 0")}
    text = r"PeerLeft: layer4\.weight \(round 2\) failed on rank 0: rank 1 has shut down"
    check_survivors(first, since_s, case, {"worker 0": text})
    check_survivors(ended, first["worker 0"].at_s, case, dict.fromkeys(ended, RANK.format(0)))


def check_victim(job: FaultyJob, case: Case) -> None:
    """One that was stopped ends with one error when it goes on. Then nothing is left."""
    if case.how == "stop":
        assert job.processes[case.victim].ended(0) is None
        since_s = job.send(case.victim, "continue")
        end = job.ends(since_s + SLACK_S)[case.victim]
        assert (end.code, len(end.complaints)) == (1, 1), end
    assert job.left_over() == []


def lose_in_traffic(case: Case, settings: Settings, workers: int = 3) -> None:
    """All links are full."""
    ranks = range(workers)
    with FaultyJob(workers, settings=settings) as job:
        job.start_roles()
        for rank in ranks:
            job.start_worker(rank, "busy")
        job.await_text("ready")
        since_s = job.send(case.victim, case.how)
        ended = job.ends(since_s + case.within_s + 5, case.victim)
        in_flight = rf"PeerLost: (layer4\.weight \(round \d+\) failed on rank \d: )?{case.blame}"
        check_survivors(ended, since_s, case, {f"worker {rank}": in_flight for rank in ranks})
        check_victim(job, case)
