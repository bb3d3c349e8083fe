"""Ranks that leave: what the others are told, and what still works."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from byteps.errors import PeerLeft, PeerLost, SessionClosed
from byteps.session import Session
from byteps.testing import run_ranks
from byteps.wire import TensorSpec
from tests.unit.test_security import CERTIFICATE, KEY

from .arrays import Array, Job, exchange, spec, start
from .sockets import socket_job


def ones(what: TensorSpec) -> Array:
    return np.ones(what.length, np.float32)


LENGTHS = [1, 200_000]
LEFT = "rank 2 has shut down"


@pytest.mark.parametrize("length", LENGTHS)
def test_only_rounds_without_the_leavers_contribution_fail(job: Job, length: int) -> None:
    given, missed = spec("given", length), spec("missed", length)
    with job(3, servers=2) as sessions:
        data = [ones(given) for _ in sessions]
        last = start(sessions[2], given, data[2], data[2])
        waiting = start(sessions[0], missed, ones(missed), None)
        rest = [start(session, given, data[session.rank], data[session.rank]) for session in sessions[:2]]
        for handle in (last, *rest):
            handle.wait()
        sessions[2].shutdown()
        with pytest.raises(PeerLeft, match=rf"missed.*rank 0.*{LEFT}"):
            waiting.wait()
        with pytest.raises(PeerLeft, match=rf"missed.*rank 1.*{LEFT}"):
            start(sessions[1], missed, ones(missed), None).wait()
        assert all(np.all(array == 3) for array in data)


@pytest.mark.parametrize("known", [True, False], ids=["declared before", "new"])
def test_rounds_submitted_later_fail_too(job: Job, known: bool) -> None:
    what = spec("later", 200_000)
    with job(3, servers=2) as sessions:
        if known:
            run_ranks(sessions, lambda one: exchange(one, what, ones(what)))
        sessions[2].shutdown()

        def attempt(session: Session) -> str:
            with pytest.raises(PeerLeft) as caught:
                exchange(session, what, ones(what))
            return str(caught.value)

        for _ in range(3):
            for message in run_ranks(sessions[:2], attempt):
                assert re.search(LEFT, message)


def test_two_ranks_that_leave(job: Job) -> None:
    what = spec("x", 100)
    with job(4) as sessions:
        run_ranks(sessions, lambda one: exchange(one, what, ones(what)))
        sessions[3].shutdown()
        sessions[1].shutdown()
        for session in (sessions[0], sessions[2]):
            with pytest.raises(PeerLeft, match=r"rank [13] has shut down"):
                exchange(session, what, ones(what))


@pytest.mark.parametrize("length", LENGTHS)
def test_shutdown_ends_own_rounds_in_flight(job: Job, length: int) -> None:
    what = spec("cut off", length)
    with job(2, servers=2, connections=2) as sessions, ThreadPoolExecutor() as pool:
        own, other = ones(what), ones(what)
        waiting = pool.submit(start(sessions[0], what, own, own).wait)
        sessions[0].shutdown()
        assert isinstance(waiting.exception(10), SessionClosed)
        error = pool.submit(start(sessions[1], what, other, other).wait).exception(10)
        if error is None:
            assert np.all(other == 2), "the contribution had gone out before"
        else:
            assert isinstance(error, PeerLeft)
            assert "rank 0 has shut down" in str(error)


def test_many_rounds_in_flight_at_shutdown(job: Job) -> None:
    specs = [spec(f"t{number}", 30_000) for number in range(100)]

    def run(session: Session) -> tuple[int, int]:
        data = [ones(what) for what in specs]
        order = specs if session.rank < 2 else specs[:50]
        handles = [start(session, what, data[n], data[n]) for n, what in enumerate(order)]
        if session.rank == 2:
            handles[9].wait()
            session.shutdown()
        good = bad = 0
        for handle, array in zip(handles, data, strict=False):
            try:
                handle.wait()
            except (PeerLeft, SessionClosed):
                bad += 1
            else:
                good += 1
                assert np.all(array == 3)
        return good, bad

    with job(3, servers=2, credit_bytes=1 << 20) as sessions:
        results = run_ranks(sessions, run)
    for good, bad in results[:2]:
        assert good >= 10
        assert bad >= 50
        assert good + bad == 100
    assert sum(results[2]) == 50


def test_nothing_works_after_shutdown(job: Job) -> None:
    what = spec("x", 3)
    with job(2) as sessions:
        data = [ones(what) for _ in sessions]
        handles = [start(session, what, array, array) for session, array in zip(sessions, data, strict=True)]
        handles[1].wait()
        while not handles[0].poll():
            pass
        sessions[0].shutdown()
        sessions[0].shutdown()
        handles[0].wait()
        assert np.all(data[0] == 2), "what was over is not lost"
        for call in (
            lambda: sessions[0].declare([what]),
            lambda: start(sessions[0], what, None, None),
            sessions[0].barrier,
        ):
            with pytest.raises(SessionClosed, match="init"):
                call()


def test_a_barrier_that_a_rank_has_left_for_good_fails(job: Job) -> None:
    with job(3) as sessions, ThreadPoolExecutor() as pool:
        run_ranks(sessions, lambda one: one.barrier())
        early = pool.submit(sessions[0].barrier)
        sessions[2].shutdown()
        error = early.exception(10)
        assert isinstance(error, PeerLeft)
        assert re.search(LEFT, str(error))
        with pytest.raises(PeerLeft, match=LEFT):
            sessions[1].barrier()


def test_a_barrier_in_progress_ends_at_shutdown(job: Job) -> None:
    with job(2) as sessions, ThreadPoolExecutor() as pool:
        waiting = pool.submit(sessions[0].barrier)
        sessions[0].shutdown()
        assert isinstance(waiting.exception(10), SessionClosed)


def test_a_rank_that_is_lost_fails_everything_on_the_others(job: Job) -> None:
    """What a closed connection without a word before means, is said to all."""
    what = spec("x", 200_000)
    with job(3, servers=2) as sessions, ThreadPoolExecutor() as pool:
        run_ranks(sessions, lambda one: exchange(one, what, ones(what)))
        waiting = [pool.submit(start(one, what, ones(what), None).wait) for one in sessions[:2]]
        waiting.append(pool.submit(sessions[1].barrier))
        sessions[2]._control._channel.close()  # type: ignore[union-attr]
        for future in waiting[:2]:
            error = future.exception(10)
            assert isinstance(error, PeerLost)
            assert re.search(r"x \(round 2\).*worker rank 2.*was lost", str(error))
        for call in (sessions[0].barrier, lambda: exchange(sessions[1], what, ones(what))):
            with pytest.raises(PeerLost, match="worker rank 2"):
                call()
        assert isinstance(waiting[2].exception(10), PeerLost)


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "TLS"])
def test_ranks_that_leave_at_once_are_not_taken_for_lost(encrypted: bool, tmp_path: Path) -> None:
    """Notices of the others' leaving cross those of a rank's own; ``socket_job`` looks at the exit codes."""
    (tmp_path / "cert").write_text(CERTIFICATE)
    (tmp_path / "key").write_text(KEY)
    files = {"tls_cert": "cert", "tls_key": "key", "tls_ca": "cert"}
    settings = {name: str(tmp_path / file) for name, file in files.items()} if encrypted else {}
    for _ in range(4):
        with socket_job(8, servers=2, **settings) as sessions:
            run_ranks(sessions, lambda one: one.barrier())
            run_ranks(sessions, lambda one: one.shutdown())


def test_two_jobs_in_one_process(job: Job) -> None:
    what = spec("shared name", 10_000)
    with job(2, servers=2) as first, job(3) as second:
        results = run_ranks([*first, *second], lambda one: exchange(one, what, ones(what)))
        assert [float(result[-1]) for result in results] == [2, 2, 3, 3, 3]
        first[0].shutdown()
        again = run_ranks(second, lambda one: exchange(one, what, ones(what)))
        assert all(np.all(result == 3) for result in again)
