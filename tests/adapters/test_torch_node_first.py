"""Ranks of a node sum by collectives of their own first: here by gloo in host memory, on GPUs by NCCL."""

from __future__ import annotations

import gc
import itertools
import random
import re
import threading
import weakref
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor, nn

import byteps.torch as bps
from byteps.communicator.node_collectives import Offer, objection
from byteps.communicator.node_first import NodeFirst
from byteps.communicator.node_shares import Shares
from byteps.dtypes import DType, ReduceOp
from byteps.errors import ConfigError, DeclarationError, PeerLeft, StallTimeout
from byteps.session import Session
from byteps.testing import run_ranks
from byteps.torch.node_sums.engine import NodeSums, node_engine
from byteps.torch.node_sums.streams import check_device
from tests.session import arrays
from tests.session.arrays import Array, exchange, small_values, spec, start
from tests.session.test_programs import Program, check, programs
from tests.session.test_values import PARTITION_BYTES, check_all_cases

from .training import assert_same, distributed, parameters, sgd

NODES = [(0, 0), (0, 0, 1, 1), (0, 1, 0, 1), (0, 0, 0, 1), (0, 0, 0, 1, 1, 2)]
FLOATS = [DType.FLOAT64, DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16]
CHUNK = 1 << 16


def job(size: int, servers: int = 1, *, nodes: Any = None, least_bytes: int = 1, **more: Any) -> Any:
    """Ranks that sum everything that they can by gloo within their nodes; pairs of ranks if not told."""
    where = [rank // 2 for rank in range(size)] if nodes is None else nodes
    more = {"collective_bytes": CHUNK, "node_collectives": "gloo", **more}
    engine = partial(node_engine, least_bytes=least_bytes)
    return arrays.job(len(where), servers, nodes=where, node_engine=engine, **more)


def engine_of(session: Session) -> str:
    """What sums on the node."""
    assert isinstance(session.communicator, NodeFirst)
    return "" if session.communicator.engine is None else session.communicator.engine.name


@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_dtype_size_and_operation(size: int) -> None:
    """Sums of floats through the node's collectives, the rest as without."""
    with job(size, 2, partition_bytes=PARTITION_BYTES) as sessions:
        assert engine_of(sessions[0]) == "gloo"
        check_all_cases(sessions, 2)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs())
@pytest.mark.timeout(120)
def test_random_programs(program: Program) -> None:
    """Any order of submission on each rank, silent ranks, several rounds."""
    check(job, program)


@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.AVERAGE])
@pytest.mark.parametrize("nodes", NODES, ids=str)
def test_any_nodes(nodes: tuple[int, ...], op: ReduceOp) -> None:
    """Nodes with different numbers of ranks, of tensors of several parts; a rank that gives nothing."""
    whats = [spec(dtype.name, 3 * CHUNK // 4 + 5, dtype, op, prescale=2.0, postscale=0.5) for dtype in FLOATS]

    def run(session: Session) -> list[Array]:
        results = []
        for what, turn in itertools.product(whats, range(2)):
            silent = session.rank == 1 and turn == 1
            own = small_values(DType(what.dtype), what.length, [session.rank, turn])
            results.append(exchange(session, what, None if silent else own))
        return results

    with job(0, nodes=nodes) as sessions:
        results = run_ranks(sessions, run)
    ranks = range(len(nodes))
    for number, (what, turn) in enumerate(itertools.product(whats, range(2))):
        dtype = DType(what.dtype)
        given = [small_values(dtype, what.length, [rank, turn]) for rank in ranks if not (turn and rank == 1)]
        if turn and op is ReduceOp.AVERAGE:
            given.append(np.zeros_like(given[0]))
        wanted = arrays.expected(what, given)
        for rank in ranks:
            assert np.array_equal(results[rank][number], wanted), (rank, what, turn)


@pytest.mark.parametrize("nodes", [(0, 0, 1, 1), (0, 0, 0, 1)], ids=str)
def test_training_equals_one_process(nodes: tuple[int, ...]) -> None:
    """Gradients of several parts, sent while the backward pass goes on; small ones go as without."""
    size = len(nodes)

    def made() -> nn.Sequential:
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(64, 300), nn.Tanh(), nn.Linear(300, 64)).double()

    def batch(rank: int, step: int) -> Tensor:
        generator = torch.Generator().manual_seed(100 * step + rank)
        return torch.randn(8, 64, generator=generator, dtype=torch.float64)

    models = [made() for _ in range(size + 1)]

    def train(session: Session) -> list[Tensor]:
        model = models[session.rank]
        optimizer = distributed(model, session)
        for step in range(6):
            optimizer.zero_grad()
            model(batch(session.rank, step)).square().mean().backward()
            optimizer.step()
        return parameters(model)

    with job(0, 2, nodes=nodes, least_bytes=CHUNK) as sessions:
        results = run_ranks(sessions, train)
    alone = models[size]
    optimizer = sgd(alone.parameters())
    for step in range(6):
        optimizer.zero_grad()
        for rank in range(size):
            (alone(batch(rank, step)).square().mean() / size).backward()
        optimizer.step()
    for result in results:
        assert_same(result, results[0])
        for found, wanted in zip(result, parameters(alone), strict=True):
            torch.testing.assert_close(found, wanted)


def test_a_late_gradient_holds_up_nothing_else() -> None:
    """Rank 3 waits for the second tensor before it submits the first; the others submit that first."""
    first, second = spec("first", CHUNK), spec("second", CHUNK)

    def run(session: Session) -> list[float]:
        data = np.ones(CHUNK, np.float32)
        if session.rank == 3:
            return [float(exchange(session, what, data)[-1]) for what in (second, first)]
        into = [np.zeros_like(data), np.zeros_like(data)]
        handles = [start(session, *each) for each in zip((first, second), (data, data), into, strict=True)]
        for handle in handles:
            handle.wait()
        return [float(each[-1]) for each in into]

    with job(4) as sessions:
        for _ in range(5):
            assert run_ranks(sessions, run) == [[4.0, 4.0]] * 4


@pytest.mark.parametrize("late", [0, 1, 3])
def test_a_rank_that_others_wait_for_is_named(late: int) -> None:
    what = spec("x", CHUNK)

    def run(session: Session) -> str:
        if session.rank == late:
            return ""
        with pytest.raises(StallTimeout) as caught:
            exchange(session, what, np.ones(CHUNK, np.float32))
        return str(caught.value)

    with job(4, stall_timeout_s=1.0) as sessions:
        said = run_ranks(sessions, run)
    assert all(f"rank {late}" in text for rank, text in enumerate(said) if rank != late), said


def test_ranks_may_leave_as_soon_as_they_have_their_results() -> None:
    def run(session: Session) -> float:
        result = exchange(session, spec("x", 2 * CHUNK), np.ones(2 * CHUNK, np.float32))
        session.shutdown()
        return float(result[-1])

    for _ in range(5):
        with job(4) as sessions:
            assert run_ranks(sessions, run) == [4.0] * 4


@pytest.mark.parametrize("gone", [0, 1, 3])
def test_a_rank_that_leaves_early_fails_what_needs_it(gone: int) -> None:
    def run(session: Session) -> str:
        if session.rank == gone:
            session.shutdown()
            return ""
        with pytest.raises(PeerLeft) as caught:
            exchange(session, spec("x", CHUNK), np.ones(CHUNK, np.float32))
        return str(caught.value)

    with job(4) as sessions:
        said = run_ranks(sessions, run)
    assert all(f"rank {gone}" in text for rank, text in enumerate(said) if rank != gone), said


def test_ranks_that_disagree_about_a_tensor_are_all_told_and_go_on() -> None:
    def run(session: Session) -> tuple[str, float]:
        length = CHUNK if session.rank != 2 else CHUNK + 1
        with pytest.raises(DeclarationError) as caught:
            exchange(session, spec("x", length), np.ones(length, np.float32))
        return str(caught.value), float(exchange(session, spec("y", CHUNK), np.ones(CHUNK, np.float32))[0])

    with job(4) as sessions:
        for text, value in run_ranks(sessions, run):
            assert "'x'" in text
            assert value == 4.0


def test_parts_of_rounds_that_fail_are_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that disagree again and again, each time when some have summed on their node already."""
    shares: list[weakref.ref[Tensor]] = []
    summed = {f"x{number}": threading.Event() for number in range(6)}
    reduce = NodeSums.reduce

    def noted(self: NodeSums, entry: Any, *how: Any, **more: Any) -> Any:
        result = reduce(self, entry, *how, **more)
        shares.append(weakref.ref(result.share))
        summed[entry.round.spec.name].set()
        return result

    monkeypatch.setattr(NodeSums, "reduce", noted)

    def run(session: Session) -> None:
        for name, some_have_summed in summed.items():
            agrees = session.rank < 2
            assert agrees or some_have_summed.wait(50)
            what = spec(name, CHUNK // 4 if agrees else 1)
            with pytest.raises(DeclarationError):
                exchange(session, what, np.ones(what.length, np.float32))

    with job(4) as sessions:
        run_ranks(sessions, run)
    for thread in threading.enumerate():
        if thread.name == "byteps-waiter":
            thread.join(10)
    gc.collect()
    assert len(sessions) == 4, "which still live"
    assert len(shares) == 12
    assert sum(share() is not None for share in shares) == 0


def test_a_rank_without_data_takes_part_until_the_others_have_none() -> None:
    """``join``: rank r has r + 1 batches."""

    def run(session: Session) -> list[float]:
        sums = [
            float(exchange(session, spec("x", CHUNK), np.ones(CHUNK, np.float32))[0])
            for _ in range(session.rank + 1)
        ]
        bps.join(session=session)
        return sums

    with job(4) as sessions:
        results = run_ranks(sessions, run)
    assert results[3] == [4.0, 3.0, 2.0, 1.0]


def test_what_ranks_submit_in_any_order_is_summed_again_and_again() -> None:
    whats = [spec(f"tensor {number}", CHUNK // 2 + number) for number in range(12)]

    def run(session: Session) -> None:
        order = random.Random(session.rank)
        for turn in range(4):
            data = {what.name: np.full(what.length, float(turn + 1), np.float32) for what in whats}
            chosen = order.sample(whats, len(whats))
            handles = [
                start(session, what, data[what.name], data[what.name], order.randint(0, 9)) for what in chosen
            ]
            for handle in handles:
                handle.wait()
            assert all(np.all(each == 4.0 * (turn + 1)) for each in data.values())

    with job(4, 2) as sessions:
        run_ranks(sessions, run)


@pytest.mark.parametrize("sizes", [(2, 2), (4, 1), (3, 2, 1), (8, 7)], ids=str)
def test_shares_are_held_by_one_rank_of_each_node_and_cover_everything(sizes: tuple[int, ...]) -> None:
    nodes, first = [], 0
    for size in sizes:
        nodes.append(range(first, first + size))
        first += size
    ranks = [Shares(nodes, rank) for rank in range(first)]
    padded = ranks[0].padded(1000)
    assert padded >= 1000
    by_rank = [each.own(padded) for each in ranks]
    for rank, shares in enumerate(by_rank):
        assert shares[0].begin == padded // len(ranks[rank].node) * ranks[rank].place
        assert all(one.end == other.begin for one, other in itertools.pairwise(shares))
        assert sum(one.end - one.begin for one in shares) == padded // len(ranks[rank].node)
        for share in shares:
            assert rank in share.members
            assert all(share in by_rank[member] for member in share.members)


GOOD = Offer("gpu a", CHUNK, 2)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({}, r"ranks 0 and 1 use one GPU \(gpu a\); call torch.cuda.set_device"),
        ({"device": "b", "local_size": 4}, "rank 1 was told that its node has 4 ranks, but finds ranks 0, 1"),
        ({"device": "b", "chunk_bytes": 1}, "give all the same BYTEPS_COLLECTIVE_BYTES"),
        ({"device": "b", "lacks": "finds no CUDA device"}, "rank 1 finds no CUDA device"),
    ],
)
def test_ranks_of_a_node_that_cannot_sum_together_are_named(other: dict[str, Any], said: str) -> None:
    problem = objection([GOOD, msgspec.structs.replace(GOOD, **other)], [[0, 1]])
    assert re.search(said, problem), problem
    assert not objection([GOOD, msgspec.structs.replace(GOOD, device="gpu b")], [[0, 1]])


@pytest.mark.parametrize("wanted", ["nccl", "auto"])
def test_without_gpus_it_is_an_error_or_goes_as_without(wanted: str) -> None:
    job_settings: dict[str, Any] = {"nodes": (0, 0), "node_engine": node_engine, "node_collectives": wanted}
    if wanted == "nccl":
        said = r"rank 0 finds no CUDA device.*BYTEPS_NODE_COLLECTIVES=off"
        with pytest.raises(ConfigError, match=said), arrays.job(2, **job_settings):
            pass
        return
    with arrays.job(2, **job_settings) as sessions:
        results = run_ranks(sessions, lambda one: exchange(one, spec("x", CHUNK), np.ones(CHUNK, np.float32)))
        assert all(np.all(result == 2.0) for result in results)


def test_a_tensor_on_another_gpu_is_refused_with_what_to_do() -> None:
    with pytest.raises(
        ValueError, match=r"x: the tensor is on cuda:1, but this rank sums on cuda:0.*set_device\(1\)"
    ):
        check_device(torch.device("cuda:1"), "cuda:0", "x")
    check_device(torch.device("cuda:0"), "cuda:0", "x")
