"""Declarations: numbers, placement, installation before the answer, conflicts, refusals and forgetting."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps.dtypes import DType, ReduceOp
from byteps.errors import ProtocolError
from byteps.wire import (
    AskMissing,
    Barrier,
    BarrierDone,
    Declare,
    Declared,
    Finished,
    Install,
    Installed,
    Missing,
    Placement,
    Refusal,
    Refuse,
    Retract,
    TensorSpec,
)

from .fake_job import SERVER_IDS, FakeJob, spec

MIB = 1 << 20


def placements(job: FakeJob, rank: int) -> list[Placement]:
    return [answer for answer in job.answers(rank) if isinstance(answer, Placement)]


def ephemeral(name: str) -> TensorSpec:
    return msgspec.structs.replace(spec(name), ephemeral=True)


def job_with_one_tensor(ranks: int) -> FakeJob:
    """All ranks have declared a tensor, number 0, that is used once."""
    job = FakeJob(ranks, 1).start()
    for rank in range(ranks):
        job.declare(rank, ephemeral("once"))
    job.install(0)
    return job


def test_the_answer_waits_for_the_servers_but_for_no_other_rank() -> None:
    job = FakeJob(2, 2).start()
    job.declare(0, spec("big", (MIB,)))
    assert job.answers(0) == []
    (install,) = job.install(0)
    assert job.answers(0) == []
    job.install(1)
    (placement,) = placements(job, 0)
    assert {part.server for part in placement.parts} == {0, 1}
    assert sum(part.nbytes for part in placement.parts) == 4 * MIB
    (tensor,) = install.tensors
    expected = [(i, part.lane, part.nbytes) for i, part in enumerate(placement.parts) if part.server == 0]
    assert (tensor.id, tensor.dtype, tensor.op, tensor.parts) == (placement.id, 1, 1, expected)


def test_a_later_rank_waits_for_the_same_servers() -> None:
    job = FakeJob(2, 1).start()
    job.declare(0, spec())
    job.declare(1, spec())
    assert job.answers(0) == job.answers(1) == []
    assert len(job.install(0)) == 1
    assert job.answers(0) == job.answers(1) != []
    job.declare(1, spec("b"), spec("a"), generation=1, request=2)
    assert len(placements(job, 1)) == 1


def test_a_batch_is_answered_in_its_order_under_its_request() -> None:
    job = FakeJob(1, 3).start()
    job.declare(0, spec("small"), spec("large", (MIB,)), spec("empty", (0,)), request=41)
    job.install_all()
    (message,) = job.got(0, Declared)
    assert message.request == 41
    sizes = [sum(part.nbytes for part in one.parts) for one in placements(job, 0)]
    assert sizes == [40, 4 * MIB, 0]


def test_a_tensor_of_no_bytes_needs_no_server() -> None:
    job = FakeJob(1, 1).start()
    job.declare(0, spec("empty", (0, 3)))
    assert [one.parts for one in placements(job, 0)] == [[]]
    job.send(0, AskMissing(2, 0))
    assert job.got(0, Missing) == [Missing(2, [], [])]


CONFLICT = (
    "tensor 'fc.weight': rank 1 declared float64[10] Average, but rank 0 declared float32[10] Average; "
    "all ranks must submit the same shape, dtype and op under one name"
)


def test_a_conflict_names_both_ranks_and_reaches_everyone_once() -> None:
    job = FakeJob(3, 1).start()
    job.declare(0, spec("fc.weight"))
    job.install(0)
    (placement,) = placements(job, 0)
    job.declare(1, spec("fc.weight", dtype=DType.FLOAT64))
    assert job.answers(1) == [Refusal("fc.weight", CONFLICT)]
    assert job.got(0, Retract) == [Retract(placement.id, "fc.weight", CONFLICT)]
    assert [message.retire for message in job.install(0)] == [[placement.id]]
    job.declare(2, spec("fc.weight"))
    assert job.answers(2) == [Refusal("fc.weight", CONFLICT)]
    assert [job.errors(rank) for rank in range(3)] == [[CONFLICT]] * 3


def test_a_conflict_before_the_answer_turns_it_into_a_refusal() -> None:
    job = FakeJob(2, 1).start()
    job.declare(0, spec("fc.weight"), spec("other"))
    job.declare(1, spec("fc.weight", dtype=DType.FLOAT64))
    assert job.errors(1) == [CONFLICT], "a refusal has no reason to wait for servers"
    job.install(0)
    assert job.errors(0) == job.errors(1) == [CONFLICT]
    assert job.got(0, Retract) == []
    assert len(placements(job, 0)) == 1


def test_the_name_is_usable_again_in_the_next_generation() -> None:
    job = FakeJob(2, 1).start()
    job.declare(0, spec(dtype=DType.FLOAT64))
    job.declare(1, spec())
    job.install(0)
    job.inbox.clear()
    job.declare(1, spec(), generation=1)
    job.declare(0, spec(), generation=1)
    job.install(0)
    (first,), (second,) = placements(job, 0), placements(job, 1)
    assert first == second
    assert first.generation == 1


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"shape": (2, 5)}, "float32[2, 5] Average"),
        ({"op": ReduceOp.SUM}, "float32[10] Sum"),
        ({"prescale": 0.5}, "prescale 0.5"),
        ({"postscale": 2.0}, "postscale 2"),
    ],
)
def test_all_that_must_match_is_compared(change: dict[str, object], text: str) -> None:
    job = FakeJob(2, 1).start()
    job.declare(0, spec())
    job.declare(1, msgspec.structs.replace(spec(), **change))
    job.install(0)
    assert [text in error for error in job.errors(0) + job.errors(1)] == [True, True]


def test_roots_must_match() -> None:
    job = FakeJob(2, 1).start()
    for rank in range(2):
        job.declare(rank, TensorSpec("a", 1, (3,), ReduceOp.COPY, root=rank))
    job.install(0)
    assert "Copy from root 1, but rank 0 declared float32[3] Copy from root 0" in job.errors(0)[0]


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (TensorSpec("a", 1, (3,), ReduceOp.COPY, root=2), "root rank from 0 to 1, not 2"),
        (TensorSpec("a", 1, (3,), ReduceOp.COPY), "root rank from 0 to 1, not -1"),
        (TensorSpec("a", DType.BOOL, (3,), ReduceOp.AVERAGE), "no average"),
        (TensorSpec("a", 1, (2**50,), ReduceOp.SUM), "too large"),
        (TensorSpec("a", 1, (3,), ReduceOp.SUM, float("nan")), "finite"),
    ],
)
def test_what_no_rank_can_use_is_refused_to_each(bad: TensorSpec, text: str) -> None:
    job = FakeJob(2, 1).start()
    job.declare(0, bad, spec("good"))
    job.declare(1, bad)
    job.install(0)
    assert [len(job.errors(rank)) for rank in range(2)] == [1, 1]
    assert all(text in job.errors(rank)[0] for rank in range(2))
    assert len(placements(job, 0)) == 1


def test_a_rank_that_refuses_fails_the_tensor_everywhere_else() -> None:
    job = FakeJob(3, 1).start()
    job.declare(0, spec())
    job.declare(1, spec())
    job.install(0)
    job.send(1, Refuse("a", 0, "rank 1 submitted 'a' as float32[11]"))
    job.declare(2, spec())
    assert [len(job.errors(rank)) for rank in range(3)] == [1, 0, 1]
    assert job.errors(0) == job.errors(2) == ["rank 1 submitted 'a' as float32[11]"]
    assert [message.retire for message in job.install(0)] == [[0]]


def test_a_refusal_before_any_declaration_is_remembered() -> None:
    job = FakeJob(2, 1).start()
    job.send(1, Refuse("a", 0, "no"))
    with pytest.raises(ProtocolError, match="twice as generation 0"):
        job.declare(1, spec())
    job.declare(0, spec())
    assert job.errors(0) == ["no"]
    assert job.inbox.keys() == {0}
    job.declare(0, spec(), generation=1)
    job.declare(1, spec(), generation=1)
    job.install(0)
    assert placements(job, 0) == placements(job, 1) != []


def test_a_name_is_declared_once_per_generation() -> None:
    job = FakeJob(1, 1).start()
    job.declare(0, spec())
    with pytest.raises(ProtocolError, match="twice as generation 0"):
        job.declare(0, spec())


def test_what_all_ranks_have_finished_is_forgotten_with_the_next_install() -> None:
    job = job_with_one_tensor(2)
    job.send(0, Finished([0]))
    job.send(1, Finished([0, 12345]))
    assert job.install(0) == []
    job.declare(0, spec("next"))
    assert [message.retire for message in job.install(0)] == [[0]]
    job.declare(1, ephemeral("once"), generation=1)
    job.install(0)
    assert placements(job, 1)[-1].id == 2


def test_many_forgotten_tensors_do_not_wait_for_an_install() -> None:
    job = FakeJob(1, 1).start()
    job.declare(0, *(ephemeral(f"t{index}") for index in range(300)))
    job.install(0)
    job.send(0, Finished(list(range(300))))
    assert [len(message.retire) for message in job.install(0)] == [300]


def test_one_that_left_counts_as_finished_and_is_told_nothing() -> None:
    job = job_with_one_tensor(3)
    job.send(0, Finished([0]))
    job.send(1, Finished([0]))
    job.declare(2, spec("late"))
    job.leave(2)
    before = len(job.inbox[2])
    job.install(0)
    assert len(job.inbox[2]) == before
    job.declare(0, spec("late"))
    job.declare(1, spec("later"))
    assert [message.retire for message in job.install(0)] == [[0]]
    assert job.errors(0) == []


def test_a_finished_name_may_come_again_before_the_others_have_finished_it() -> None:
    job = FakeJob(2, 1).start()
    job.declare(0, ephemeral("once"))
    job.declare(1, ephemeral("once"))
    job.install_all()
    (first,) = placements(job, 0)
    job.send(0, Finished([first.id]))
    job.declare(0, TensorSpec("once", DType.INT32, (7,), ReduceOp.SUM, ephemeral=True))
    job.install_all()
    second = placements(job, 0)[1]
    assert second.id != first.id
    job.send(1, Finished([first.id]))
    job.declare(1, TensorSpec("once", DType.INT32, (7,), ReduceOp.SUM, ephemeral=True))
    assert [placement.id for placement in placements(job, 1)] == [first.id, second.id]
    assert job.errors(0) == job.errors(1) == []


def test_forgotten_tensors_make_room_for_others() -> None:
    job = FakeJob(1, 2).start()
    for generation in range(6):
        job.declare(0, ephemeral("once"), generation=generation)
        job.install_all()
        (placement,) = placements(job, 0)[generation:]
        assert [part.server for part in placement.parts] == [0]
        job.send(0, Finished([placement.id]))


def test_barriers_pair_up_by_call_order() -> None:
    job = FakeJob(2, 1).start()
    job.send(0, Barrier(5))
    job.send(0, Barrier(6))
    assert job.got(0, BarrierDone) == []
    job.send(1, Barrier(9))
    assert job.got(0, BarrierDone) == [BarrierDone(5)]
    assert job.got(1, BarrierDone) == [BarrierDone(9)]
    job.send(1, Barrier(10))
    assert job.got(0, BarrierDone) == [BarrierDone(5), BarrierDone(6)]


def test_a_barrier_ends_when_a_rank_that_left_is_missing() -> None:
    job = FakeJob(3, 1).start()
    for rank, request in ((0, 5), (0, 6), (2, 9)):
        job.send(rank, Barrier(request))
    job.leave(2)
    assert job.got(0, BarrierDone) == []
    job.send(1, Barrier(7))
    assert job.got(0, BarrierDone) == [BarrierDone(5), BarrierDone(6, departed=2)]
    job.send(1, Barrier(8))
    assert job.got(1, BarrierDone) == [BarrierDone(7), BarrierDone(8, departed=2)]


def test_who_is_missing_is_asked_of_the_servers_that_hold_parts() -> None:
    job = FakeJob(3, 2).start()
    job.declare(0, spec("big", (MIB,)))
    job.install_all()
    job.silent = {("worker", 1), ("worker", 2)}
    job.advance(3)
    job.send(0, AskMissing(8, 0))
    asked = [job.got(SERVER_IDS + server, AskMissing)[0] for server in range(2)]
    job.send(SERVER_IDS, Missing(asked[0].request, [2], [4.0]))
    assert job.got(0, Missing) == []
    job.send(SERVER_IDS + 1, Missing(asked[1].request, [1, 2], [2.0, 9.0]))
    assert job.got(0, Missing) == [Missing(8, [1, 2], [2.0, 3.0])]
    with pytest.raises(ProtocolError, match="did not get"):
        job.send(SERVER_IDS, Missing(asked[0].request, [], []))


def test_nobody_is_missing_from_a_tensor_that_is_gone() -> None:
    job = FakeJob(2, 1).start()
    job.send(0, AskMissing(8, 77))
    assert job.got(0, Missing) == [Missing(8, [], [])]


RANKS = st.integers(2, 4)
NAMES = ("a", "b", "c")


@given(data=st.data(), ranks=RANKS, servers=st.integers(1, 3))
def test_any_interleaving_gives_each_rank_one_answer_per_tensor(
    data: st.DataObject, ranks: int, servers: int
) -> None:
    """Ranks declare in any order, batched anyhow, some with another dtype; servers answer at any time."""
    odd = data.draw(st.dictionaries(st.sampled_from(NAMES), st.integers(0, ranks - 1)), label="odd one out")
    orders = [data.draw(st.permutations(NAMES), label=f"order of rank {rank}") for rank in range(ranks)]
    job = FakeJob(ranks, servers).start()
    steps = [("rank", rank) for rank in range(ranks) for _ in NAMES] + [
        ("server", s) for s in range(servers)
    ] * 4
    for kind, number in data.draw(st.permutations(steps), label="steps"):
        if kind == "server":
            _answer_one_install(job, number)
            continue
        batch = [orders[number].pop(0) for _ in range(data.draw(st.integers(0, len(orders[number]))))]
        _declare(job, number, batch, odd)
    for rank in range(ranks):
        _declare(job, rank, orders[rank], odd)
    while any(job.install(server) for server in range(servers)):
        pass
    _check_outcome(job, ranks, odd)


def _declare(job: FakeJob, rank: int, names: list[str], odd: dict[str, int]) -> None:
    if names:
        specs = [spec(name, dtype=DType.INT8 if odd.get(name) == rank else DType.FLOAT32) for name in names]
        job.send(rank, Declare(len(job.inbox[rank]), specs, [0] * len(specs)))


def _answer_one_install(job: FakeJob, server: int) -> None:
    inbox = job.inbox[SERVER_IDS + server]
    if inbox:
        message = inbox.pop(0)
        assert isinstance(message, Install)
        job.send(SERVER_IDS + server, Installed(message.request))


def _check_outcome(job: FakeJob, ranks: int, odd: dict[str, int]) -> None:
    ids: dict[int, set[int]] = {}
    for rank in range(ranks):
        assert len(job.answers(rank)) == len(NAMES), "an answer is missing"
        errors = job.errors(rank)
        for name in NAMES:
            about = [error for error in errors if error.startswith(f"tensor {name!r}")]
            assert len(about) == (name in odd), "exactly one error on every rank concerned"
        retracted = {message.id for message in job.got(rank, Retract)}
        ids[rank] = {one.id for one in placements(job, rank)} - retracted
    assert all(ids[rank] == ids[0] for rank in ids)
    assert len(ids[0]) == len(NAMES) - len(odd)
