"""Ranks that share a node, as the coordinator sees them: who meets whom, and whom a late sum waits for."""

from __future__ import annotations

import msgspec
import pytest

from byteps.wire import AskMissing, Missing, Welcome

from .fake_job import SERVER_IDS, FakeJob, join, spec


def started(places: list[str], local_size: int = 0) -> FakeJob:
    """A job of one server, and workers that tell where they can be met, and what their launcher says."""
    job = FakeJob(len(places), 1)
    job.send(SERVER_IDS, join(0, role="server"))
    for rank, place in enumerate(places):
        told = {"place": place, "door": place and f"door {rank}", "local_size": local_size}
        job.send(rank, msgspec.structs.replace(join(rank), **told))
    return job


def test_ranks_of_one_place_are_told_of_each_others_doors() -> None:
    job = started(["a", "b", "a", ""])
    greetings = [job.got(member, Welcome)[0] for member in (0, 1, 2, 3, SERVER_IDS)]
    assert all(one.nodes == [[0, 2], [1], [3]] for one in greetings)
    assert [one.doors for one in greetings] == [
        ["door 0", "door 2"],
        ["door 1"],
        ["door 0", "door 2"],
        [""],
        [],
    ]


def test_where_nobody_shares_a_place_there_are_no_nodes() -> None:
    (greeting,) = started(["a", "b", ""]).got(0, Welcome)
    assert (greeting.nodes, greeting.doors) == ([], [])


def test_a_launcher_that_counts_other_neighbours_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    for places in (["a", "a", "b", "b"], ["", "", "a", "a"]):
        started(places, local_size=2)
    assert not caplog.records
    started(["a", "a", "b", "c"], local_size=2)
    (record,) = caplog.records
    assert "says that 2 workers share the node of worker rank 2 " in record.getMessage()
    assert "but 1 can be met there" in record.getMessage()


def test_who_pushes_for_a_late_neighbour_is_not_called_late() -> None:
    job = started(["a", "a", "b", "b"])
    for rank in range(4):
        job.declare(rank, spec())
    job.install_all()
    job.now_s = 3.0
    job.send(3, AskMissing(8, 0))
    questions = {member: job.got(member, AskMissing)[-1].request for member in (0, 1, 2, 3, SERVER_IDS)}
    job.send(SERVER_IDS, Missing(questions[SERVER_IDS], [0], [0.5]))  # it pushes for both
    job.send(0, Missing(questions[0], [1], [float("inf")]))
    for rank in (1, 2):
        job.send(rank, Missing(questions[rank], [], []))
    assert not job.got(3, Missing)
    job.leave(3)  # who asks may leave; the others' answers still fit
    job.send(2, AskMissing(9, 0))
    later = {member: job.got(member, AskMissing)[-1].request for member in (0, 1, 2, SERVER_IDS)}
    job.send(SERVER_IDS, Missing(later[SERVER_IDS], [0], [0.5]))
    for rank in (0, 1):
        job.send(rank, Missing(later[rank], [1], [float("inf")]))
    job.send(2, Missing(later[2], [], []))
    (answer,) = job.got(2, Missing)
    assert (answer.request, answer.ranks) == (9, [1])
