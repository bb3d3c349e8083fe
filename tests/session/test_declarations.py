"""Tensors that cannot match: an error on every rank concerned, and a session that goes on."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from byteps.dtypes import DType, ReduceOp
from byteps.errors import BytePSError, DeclarationError, DuplicateNameError
from byteps.session import Session
from byteps.testing import run_ranks
from byteps.wire import TensorSpec

from .arrays import Array, Job, exchange, spec, start

CONFLICTS = [
    pytest.param(spec("x", 4), spec("x", 5), id="size"),
    pytest.param(
        TensorSpec("x", DType.FLOAT32, (2, 3), 0), TensorSpec("x", DType.FLOAT32, (3, 2), 0), id="shape"
    ),
    pytest.param(spec("x", 4), spec("x", 4, DType.INT32), id="dtype"),
    pytest.param(spec("x", 4), spec("x", 4, op=ReduceOp.AVERAGE), id="op"),
    pytest.param(spec("x", 4), spec("x", 4, prescale=0.5), id="scale"),
    pytest.param(spec("x", 4, op=ReduceOp.COPY, root=0), spec("x", 4, op=ReduceOp.COPY, root=1), id="root"),
]


def ones(what: TensorSpec) -> Array:
    return np.ones(what.nbytes, np.uint8)


def attempt(session: Session, what: TensorSpec) -> str:
    """One round; what it raised."""
    data = ones(what)
    try:
        start(session, what, data, data).wait()
    except DeclarationError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("later", [0, 1, 2])
@pytest.mark.parametrize(("first", "other"), CONFLICTS)
def test_ranks_that_differ_all_get_an_error_that_names_both(
    job: Job, first: TensorSpec, other: TensorSpec, later: int
) -> None:
    """One rank of three differs. Rank ``later`` comes last, when the others wait, or have failed."""
    others_are_in = threading.Barrier(3)

    def run(session: Session) -> str:
        own = other if session.rank == 1 else first
        if session.rank == later:
            others_are_in.wait(10)
            return attempt(session, own)
        data = ones(own)
        try:
            handle = start(session, own, data, data)
        except DeclarationError as error:
            others_are_in.wait(10)
            return str(error)
        others_are_in.wait(10)
        try:
            handle.wait()
        except DeclarationError as error:
            return str(error)
        return ""

    with job(3, servers=2) as sessions:
        messages = run_ranks(sessions, run)
        assert all("'x'" in message and "rank 1" in message for message in messages), messages
        assert all("rank 0" in message or "rank 2" in message for message in messages), messages
        assert all(first.describe() in message and other.describe() in message for message in messages)
        again = run_ranks(sessions, lambda one: exchange(one, spec("x", 6), np.ones(6, np.float32)))
        assert all(np.all(result == 3) for result in again), "the name is free again"


def test_an_empty_tensor_has_no_round_to_fail_later(job: Job) -> None:
    """A tensor without elements is complete at once; the conflict shows at the next use."""
    with job(2) as sessions:
        start(sessions[0], spec("x", 0), None, None).wait()
        with pytest.raises(DeclarationError, match="rank 1 declared"):
            sessions[1].declare([spec("x", 3)])
        with pytest.raises(DeclarationError, match="rank 1 declared"):
            start(sessions[0], spec("x", 0), None, None).wait()


@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_another_use_of_a_name_fails_on_all_ranks(job: Job, rounds: int) -> None:
    """Rank 0 notices first; rank 1 must not wait for it in vain, nor miss the error."""
    first, other = spec("x", 4), spec("x", 8)
    with job(2) as sessions:
        run_ranks(sessions, lambda one: one.declare([first]))
        for _ in range(rounds):
            run_ranks(sessions, lambda one: exchange(one, first, np.ones(4, np.float32)))
        messages = [attempt(session, other) for session in sessions]  # one after the other
        assert all(
            "'x'" in text and first.describe() in text and other.describe() in text for text in messages
        )
        assert run_ranks(sessions, lambda one: attempt(one, other)) == ["", ""], (
            "the new use is agreed on now"
        )


def test_another_use_of_a_name_fails_the_round_in_flight_elsewhere(job: Job) -> None:
    first, other = spec("x", 4), spec("x", 8)
    with job(3) as sessions:
        run_ranks(sessions, lambda one: exchange(one, first, np.ones(4, np.float32)))
        data = np.ones(4, np.float32)
        waiting = [start(sessions[rank], first, data, data.copy()) for rank in (1, 2)]
        with pytest.raises(DeclarationError, match="'x'"):
            start(sessions[0], other, None, None)
        for handle in waiting:
            with pytest.raises(DeclarationError, match=r"'x'.*rank 0"):
                handle.wait()
        results = run_ranks(sessions, lambda one: exchange(one, other, np.ones(8, np.float32)))
        assert all(np.all(result == 3) for result in results)


def test_conflicts_do_not_stop_other_tensors_in_flight(job: Job) -> None:
    def run(session: Session) -> tuple[str, Array]:
        good = np.ones(300_000, np.float32)
        handle = start(session, spec("good", good.size), good, good)
        message = attempt(session, spec("bad", 10 + session.rank))
        handle.wait()
        return message, good

    with job(3, servers=2) as sessions:
        for message, good in run_ranks(sessions, run):
            assert "'bad'" in message
            assert np.all(good == 3)


def test_repeated_conflicts_under_one_name(job: Job) -> None:
    """Ranks that go on after each error stay in step: every attempt is one generation on every rank."""

    def run(session: Session) -> list[bool]:
        outcomes = []
        for number in range(30):
            length = 5 + number + (number % 3 == session.rank)
            outcomes.append(attempt(session, spec("x", length)) == "")
        return outcomes

    with job(3, servers=2) as sessions:
        assert run_ranks(sessions, run) == [[False] * 30] * 3
        final = run_ranks(sessions, lambda one: exchange(one, spec("x", 3), np.ones(3, np.float32)))
        assert all(np.all(result == 3) for result in final)


def test_a_batch_names_all_that_differ_and_keeps_the_rest(job: Job) -> None:
    with job(2) as sessions:
        sessions[0].declare([spec("a", 1), spec("b", 2), spec("c", 3)])
        with pytest.raises(DeclarationError, match=r"'a'.*'c'"):
            sessions[1].declare([spec("a", 10), spec("b", 2), spec("c", 30)])
        results = run_ranks(sessions, lambda one: exchange(one, spec("b", 2), np.ones(2, np.float32)))
        assert all(np.all(result == 2) for result in results)


def test_a_name_in_flight_is_refused_and_the_round_goes_on(job: Job) -> None:
    what = spec("twice", 100_000)
    with job(2) as sessions:
        mine, theirs = np.ones(what.length, np.float32), np.ones(what.length, np.float32)
        handle = start(sessions[0], what, mine, mine)
        with pytest.raises(DuplicateNameError, match=r"'twice'.*rank 0"):
            start(sessions[0], what, mine, mine)
        start(sessions[1], what, theirs, theirs).wait()
        handle.wait()
        assert np.all(mine == 2)
        results = run_ranks(sessions, lambda one: exchange(one, what, np.ones(what.length, np.float32)))
        assert all(np.all(result == 2) for result in results)


def test_a_round_that_is_over_frees_its_name_without_a_wait(job: Job) -> None:
    what = spec("forgotten", 10)
    data = [np.ones(10, np.float32) for _ in range(2)]
    with job(2) as sessions:
        for _ in range(3):
            handles = [start(one, what, array, array) for one, array in zip(sessions, data, strict=True)]
            handles[1].wait()
            while not handles[0].poll():
                pass  # nobody waits for it
    assert all(np.all(array == 8) for array in data)


@pytest.mark.parametrize("nbytes", [0, 39, 41, 80])
@pytest.mark.parametrize("end", ["source", "destination"])
def test_memory_of_another_size_is_refused(job: Job, end: str, nbytes: int) -> None:
    what, wrong = spec("x", 10), np.zeros(nbytes, np.uint8)
    right = np.zeros(10, np.float32)
    with job(1) as sessions:
        pair = (wrong, right) if end == "source" else (right, wrong)
        with pytest.raises(BytePSError, match=f"'x' has 40 bytes.*{nbytes}"):
            start(sessions[0], what, *pair)
        exchange(sessions[0], what, right)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (spec("x", 3, op=ReduceOp.COPY, root=2), "root rank from 0 to 1"),
        (spec("x", 3, op=ReduceOp.COPY), "root rank"),
        (spec("x", 3, DType.BOOL, ReduceOp.AVERAGE), "no average"),
        (spec("x", 3, prescale=float("nan")), "finite"),
        (spec("x", 2**60), "too large"),
    ],
)
def test_what_no_rank_can_use_is_refused_on_all(job: Job, what: TensorSpec, message: str) -> None:
    with job(2) as sessions:
        for session in sessions:
            with pytest.raises(DeclarationError, match=message):
                session.declare([what])
        results = run_ranks(sessions, lambda one: exchange(one, spec("x", 3), np.ones(3, np.float32)))
        assert all(np.all(result == 2) for result in results)


def test_a_name_used_once_may_come_again(job: Job) -> None:
    """An ephemeral name is free for the next use on each rank as soon as that rank has its result."""

    def run(session: Session) -> list[float]:
        results = []
        for number in range(200):
            what = spec("again", 3 + number, ephemeral=True)
            results.append(float(exchange(session, what, np.full(what.length, number, np.float32))[0]))
        return results

    with job(3, servers=2) as sessions:
        assert run_ranks(sessions, run) == [[3.0 * number for number in range(200)]] * 3
