"""Joining, numbers, settings that must agree, and how a job ends: in order, or with a lost member."""

from __future__ import annotations

import logging

import msgspec
import pytest

from byteps.errors import ProtocolError
from byteps.wire import (
    Barrier,
    Declare,
    Departed,
    End,
    Installed,
    JobSettings,
    Join,
    JoinRefused,
    Leave,
    Lost,
    Message,
    Welcome,
)

from .fake_job import SERVER_IDS, FakeJob, join, spec


def settings(message: Join, lanes: int = 2, partition_bytes: int = 65536) -> Join:
    return msgspec.structs.replace(message, settings=JobSettings(lanes, partition_bytes, False))


def welcome(job: FakeJob, member: int) -> Welcome:
    (message,) = job.got(member, Welcome)
    return message


def refusal(job: FakeJob, member: int) -> str:
    (message,) = job.got(member, JoinRefused)
    return message.reason


def test_everybody_is_welcomed_once_all_are_there() -> None:
    job = FakeJob(2, 1)
    job.send(1, settings(join(1)))
    job.send(0, settings(join(0)))
    assert not job.inbox
    job.send(SERVER_IDS, join(-1, role="server"))
    assert (welcome(job, 0).rank, welcome(job, 1).rank, welcome(job, SERVER_IDS).rank) == (0, 1, 0)
    assert {welcome(job, member).size for member in (0, 1, SERVER_IDS)} == {2}
    assert welcome(job, 0).settings == JobSettings(2, 65536, False) == welcome(job, SERVER_IDS).settings
    assert [(one.host, one.port) for one in welcome(job, 0).servers] == [("127.0.0.1", 4000)]


def test_size_and_servers_may_be_told_by_the_workers() -> None:
    job = FakeJob()
    job.send(0, join(0, size=2, num_servers=1))
    job.send(SERVER_IDS, join(0, role="server"))
    job.send(1, join(1))
    assert welcome(job, 1).size == 2


def test_ranks_are_honoured_and_the_others_filled_in_join_order() -> None:
    job = FakeJob(4, 1)
    job.send(SERVER_IDS, join(0, role="server"))
    for member, rank in ((10, -1), (11, 1), (12, -1), (13, 0)):
        job.send(member, join(rank))
    assert [welcome(job, member).rank for member in (10, 11, 12, 13)] == [2, 1, 3, 0]


def test_local_ranks_count_by_node_unless_given() -> None:
    job = FakeJob(4, 1)
    job.send(SERVER_IDS, join(0, role="server"))
    for rank, node in enumerate(["a", "b", "a"]):
        job.send(rank, join(rank, node=node))
    job.send(3, msgspec.structs.replace(join(3, node="b"), local_rank=5, local_size=6))
    local = [(welcome(job, rank).local_rank, welcome(job, rank).local_size) for rank in range(4)]
    assert local == [(0, 2), (0, 2), (1, 2), (5, 6)]


def test_a_rank_that_is_taken_is_refused_and_the_holder_named() -> None:
    job = FakeJob(2, 1)
    job.send(0, join(1))
    job.send(5, join(1, node="node7"))
    assert "worker rank 1 (pid 101 on node7) cannot join: worker rank 1 (pid 101 on node0)" in refusal(job, 5)
    job.send(1, join(0))
    job.send(SERVER_IDS, join(0, role="server"))
    assert welcome(job, 0).rank == 1


@pytest.mark.parametrize(
    ("late", "texts"),
    [
        (join(1, size=3), ["size=3", "rank 1", "size=2", "rank 0"]),
        (join(1, num_servers=5), ["num_servers=5", "rank 1", "num_servers=1", "rank 0"]),
        (settings(join(1), lanes=3), ["lanes=3", "rank 1", "lanes=2", "rank 0"]),
        (settings(join(1), partition_bytes=1), ["partition_bytes=1", "partition_bytes=65536"]),
        (
            msgspec.structs.replace(join(1), settings=JobSettings(2, 65536, False, "allreduce")),
            ["communicator=allreduce", "rank 1", "communicator=parameter-server", "rank 0"],
        ),
        (join(2), ["number 2 is out of range", "2 workers"]),
    ],
)
def test_what_differs_is_refused_naming_both(late: Join, texts: list[str]) -> None:
    job = FakeJob()
    job.send(0, settings(join(0, size=2, num_servers=1)))
    job.send(1, late)
    assert all(text in refusal(job, 1) for text in texts)
    job.send(2, settings(join(1)))
    job.send(SERVER_IDS, join(0, role="server"))
    assert welcome(job, 2).rank == 1


def test_a_job_without_servers_starts_without_them_and_refuses_them() -> None:
    among_themselves = JobSettings(1, 65536, False, "allreduce")
    job = FakeJob(2)
    job.send(0, msgspec.structs.replace(join(0), settings=among_themselves))
    job.send(SERVER_IDS, join(0, role="server"))
    assert "communicator=parameter-server, but worker rank 0" in refusal(job, SERVER_IDS)
    job.send(1, msgspec.structs.replace(join(1), settings=among_themselves))
    assert welcome(job, 1).servers == []


def test_a_size_that_contradicts_the_coordinators_is_refused() -> None:
    job = FakeJob(2, 1)
    job.send(0, join(0, size=3))
    assert "but the coordinator has size=2" in refusal(job, 0)


def test_one_worker_too_many_is_refused() -> None:
    job = FakeJob(1, 1)
    job.send(0, join(-1))
    job.send(1, join(-1))
    assert "all of its 1 workers already" in refusal(job, 1)


def test_nobody_joins_a_job_that_runs() -> None:
    job = FakeJob(1, 1).start()
    job.send(7, join(0))
    assert "started already" in refusal(job, 7)


def test_waiting_is_logged_after_10_s_and_every_30_s(caplog: pytest.LogCaptureFixture) -> None:
    job = FakeJob(4, 2)
    job.send(0, join(0))
    job.send(2, join(2))
    job.send(SERVER_IDS, join(0, role="server"))
    with caplog.at_level(logging.WARNING):
        job.advance(9.9)
        assert caplog.messages == []
        job.advance(100)
    who = "waiting for worker ranks 1, 3 and 1 of 2 servers"
    assert caplog.messages == [f"{who}, {seconds} s so far" for seconds in (10, 40, 70, 100)]


def test_waiting_counts_when_ranks_are_not_known(caplog: pytest.LogCaptureFixture) -> None:
    job = FakeJob(4, 2)
    job.send(0, join(-1))
    with caplog.at_level(logging.WARNING):
        job.advance(11)
    assert caplog.messages == ["waiting for 3 of 4 workers and 2 of 2 servers, 10 s so far"]


def test_a_barrier_that_waits_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    job = FakeJob(3, 1).start()
    job.send(1, Barrier(1))
    with caplog.at_level(logging.WARNING):
        job.advance(11)
        job.send(0, Barrier(1))
        job.send(2, Barrier(1))
        job.advance(100)
    assert caplog.messages == ["waiting for worker ranks 0, 2 at a barrier, 10 s so far"]


def test_who_does_not_come_in_time_fails_the_job() -> None:
    job = FakeJob(2, 1)
    job.send(0, join(0))
    job.advance(601)
    text = "did not start within 600 s: it waited for worker rank 1 and 1 of 1 servers"
    assert text in refusal(job, 0)
    assert text in (job.failure() or "")
    job.take(job.core.disconnected(0, "connection closed"))
    assert job.finished()


def test_leaving_before_the_start_frees_the_seat() -> None:
    job = FakeJob(1, 1)
    job.send(0, join(0))
    job.send(0, Leave())
    job.take(job.core.disconnected(0, "connection closed"))
    job.send(1, join(0))
    job.send(SERVER_IDS, join(0, role="server"))
    assert welcome(job, 1).rank == 0
    assert job.failure() is None


def test_the_orderly_end() -> None:
    job = FakeJob(2, 2).start()
    job.send(0, Leave())
    assert not job.inbox  # the others are told when its process is gone
    job.take(job.core.disconnected(0, "connection closed"))
    assert job.inbox == {1: [Departed(0)], SERVER_IDS: [Departed(0)], SERVER_IDS + 1: [Departed(0)]}
    job.inbox.clear()
    job.send(1, Leave())
    assert job.inbox == {server: [End()] for server in (SERVER_IDS, SERVER_IDS + 1)}
    job.take(job.core.disconnected(1, "connection closed"))
    job.take(job.core.disconnected(SERVER_IDS, "connection closed"))
    assert not job.finished()
    job.take(job.core.disconnected(SERVER_IDS + 1, "connection closed"))
    assert job.finished()
    assert job.failure() is None


def test_what_comes_after_leave_is_passed_over() -> None:
    job = FakeJob(2, 1).start()
    job.send(0, Leave())
    job.inbox.clear()
    job.send(0, Barrier(1))
    job.send(0, Leave())
    assert not job.inbox


def test_a_server_that_does_not_end_is_named() -> None:
    job = FakeJob(1, 1).start()
    job.send(0, Leave())
    job.advance(31)
    assert job.finished()
    assert (job.failure() or "").startswith("server 0 (pid 100 on node0) did not end within 30 s")


@pytest.mark.parametrize(("member", "role", "number"), [(1, "worker", 1), (SERVER_IDS, "server", 0)])
def test_a_lost_member_is_announced_to_all_survivors(member: int, role: str, number: int) -> None:
    job = FakeJob(2, 1).start()
    job.take(job.core.disconnected(member, "connection closed"))
    name = f"worker rank {number}" if role == "worker" else f"server {number}"
    text = f"{name} (pid {100 + number} on node0) was lost: connection closed"
    survivors = {0, 1, SERVER_IDS} - {member}
    assert {one: [(m.role, m.number, m.reason) for m in job.got(one, Lost)] for one in survivors} == {
        one: [(role, number, text)] for one in survivors
    }
    assert member not in job.inbox
    assert job.failure() == text
    assert not job.finished()
    for one in survivors:
        job.take(job.core.disconnected(one, "connection closed"))
    assert job.finished()
    assert job.failure() == text


def test_survivors_that_stay_are_not_waited_for_long() -> None:
    job = FakeJob(2, 1).start()
    job.take(job.core.disconnected(0, "connection closed"))
    job.advance(0.9)
    assert not job.finished()
    job.advance(0.2)
    assert job.finished()


@pytest.mark.parametrize("heard_before", [True, False], ids=["fell silent", "was never heard"])
def test_a_silent_member_is_lost(heard_before: bool) -> None:
    job = FakeJob(2, 1).start()
    if heard_before:
        job.advance(100)
    assert job.failure() is None
    job.silent = {("worker", 0)}
    job.advance(29)
    assert job.failure() is None
    job.advance(2)
    assert job.failure() == "worker rank 0 (pid 100 on node0) was lost: no heartbeat for 30 s"
    assert len(job.got(1, Lost)) == len(job.got(SERVER_IDS, Lost)) == 1


def test_one_worker_alone_needs_no_heartbeat() -> None:
    job = FakeJob(1, 1).start()
    job.silent = {("worker", 0)}
    job.advance(100)
    assert job.failure() is None


def test_one_who_left_is_not_expected_to_be_heard_but_to_go() -> None:
    job = FakeJob(2, 1).start()
    job.send(0, Leave())
    job.silent = {("worker", 0)}
    job.advance(29)
    assert not job.inbox
    job.advance(2)
    assert job.got(1, Departed) == job.got(SERVER_IDS, Departed) == [Departed(0)]
    job.take(job.core.disconnected(0, "connection closed"))
    assert len(job.got(1, Departed)) == 1
    assert job.failure() is None


@pytest.mark.parametrize("comes_back", [False, True], ids=["is lost", "comes back"])
def test_one_who_falls_silent_as_another_leaves_is_waited_for_first(comes_back: bool) -> None:
    job = FakeJob(2, 1).start()
    job.send(0, Leave())
    job.advance(1)
    job.silent = {("server", 0)}
    job.advance(29.5)
    assert not job.got(1, Departed)
    if comes_back:
        job.silent.clear()
    job.advance(1)
    failure = "server 0 (pid 100 on node0) was lost: no heartbeat for 30 s"
    assert job.got(1, Departed) == ([Departed(0)] if comes_back else [])
    assert job.failure() == (None if comes_back else failure)


@pytest.mark.parametrize(
    ("member", "message", "text"),
    [
        (9, Leave(), "before Join"),
        (0, Installed(1), "not for a worker"),
        (SERVER_IDS, Declare(1, [spec()], [0]), "not for a server"),
        (SERVER_IDS, Leave(), "cannot leave"),
        (SERVER_IDS, Installed(77), "did not get"),
        (0, Declare(1, [spec()], []), "1 tensors in 0 generations"),
        (0, Declare(1, [spec(), spec()], [0, 0]), "twice"),
    ],
)
def test_what_no_correct_peer_sends_is_a_protocol_error(member: int, message: Message, text: str) -> None:
    job = FakeJob(1, 1).start()
    with pytest.raises(ProtocolError, match=text):
        job.send(member, message)


def test_requests_before_the_welcome_are_a_protocol_error() -> None:
    job = FakeJob(2, 1)
    job.send(0, join(0))
    with pytest.raises(ProtocolError, match="before Welcome"):
        job.send(0, Barrier(1))
    with pytest.raises(ProtocolError, match="joined twice"):
        job.send(0, join(1))
