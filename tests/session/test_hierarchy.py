"""Ranks of one node sum in shared memory: values, order, bytes, and what happens where they cannot."""

from __future__ import annotations

import dataclasses
import errno
import logging
import os
import random
import resource
import socket
import time
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from byteps.communicator.parameter_server import ParameterServer
from byteps.config import Config
from byteps.dtypes import DType, ReduceOp
from byteps.errors import ConfigError, JoinError
from byteps.hierarchy import nodes_of, piece_bytes, plan
from byteps.neighbours import Entrance
from byteps.session import Session
from byteps.testing import run_ranks
from byteps.wire import TensorSpec

from .arrays import Array, agrees, exchange, expected, job, small_values, spec, start

OPS = tuple(op for op in ReduceOp if op is not ReduceOp.COPY)
PIECE = piece_bytes(4, 1)


@dataclass(frozen=True)
class Case:
    """A job, and a tensor of it.

    Attributes:
        nodes: By rank, where it is.
        what: The tensor.
        silent: Ranks that contribute nothing, for all ops but COPY.
        deaf: Ranks that want no result.
        in_place: Whether results replace contributions.
    """

    nodes: tuple[int, ...]
    servers: int
    what: TensorSpec
    silent: frozenset[int]
    deaf: frozenset[int]
    in_place: bool

    def gives(self, rank: int) -> bool:
        return rank == self.what.root if self.what.op == ReduceOp.COPY else rank not in self.silent

    def wanted(self) -> Array:
        ranks = range(len(self.nodes))
        given = [contribution(self.what, rank) for rank in ranks if self.gives(rank)]
        if not given:
            return np.zeros_like(contribution(self.what, 0))
        if self.what.op == ReduceOp.AVERAGE:
            given += [np.zeros_like(given[0])] * (len(self.nodes) - len(given))
        return expected(self.what, given)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    nodes = tuple(draw(st.lists(st.integers(0, 2), min_size=2, max_size=6)))
    ranks = st.integers(0, len(nodes) - 1)
    dtype = draw(st.sampled_from(DType))
    op = draw(st.sampled_from(ReduceOp if dtype is not DType.BOOL else [ReduceOp.SUM, ReduceOp.COPY]))
    length = draw(st.sampled_from([1, 1000, PIECE // 8 + 1, PIECE, 3 * PIECE + 7]))
    root = draw(ranks) if op is ReduceOp.COPY else -1
    few = st.frozensets(ranks, max_size=2)
    in_place, silent = draw(st.booleans()), draw(few)
    return Case(
        nodes, draw(st.integers(1, 2)), spec("x", length, dtype, op, root=root), silent, draw(few), in_place
    )


def contribution(what: TensorSpec, rank: int) -> Array:
    return small_values(DType(what.dtype), what.length, [rank, what.length])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cases())
@pytest.mark.timeout(120)
def test_any_nodes_any_tensor(case: Case) -> None:
    def run(session: Session) -> list[Array]:
        results = []
        for _ in range(2):
            own = contribution(case.what, session.rank)
            into = own if case.in_place and case.gives(session.rank) else np.full_like(own, 1)
            source = own if case.gives(session.rank) else None
            start(session, case.what, source, None if session.rank in case.deaf else into).wait()
            results.append(into)
        return results

    with job(len(case.nodes), case.servers, nodes=case.nodes, partition_bytes=2 * PIECE) as sessions:
        wanted = case.wanted()
        for rank, results in enumerate(run_ranks(sessions, run)):
            if rank not in case.deaf:
                assert all(agrees(one, wanted, case.what, sessions) for one in results), f"rank {rank}"


@pytest.mark.parametrize("nodes", [(0, 0, 0, 0), (0, 0, 1, 1), (0, 1, 0, 2)])
@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.AVERAGE])
def test_deterministic_sums_are_the_same_bits_whoever_is_late(nodes: tuple[int, ...], op: ReduceOp) -> None:
    what = spec("sum", 50_000, op=op)
    size = len(nodes)
    magnitudes = [np.random.default_rng(rank).normal(scale=10.0**rank, size=50_000) for rank in range(size)]
    own = [each.astype(np.float32) for each in magnitudes]

    def run(session: Session) -> list[Array]:
        late = random.Random(session.rank)
        results = []
        for _ in range(6):
            time.sleep(late.uniform(0, 0.004))  # workload
            results.append(exchange(session, what, own[session.rank]))
        return results

    with job(size, servers=2, nodes=nodes, deterministic=True, connections=2) as sessions:
        results = [one for results in run_ranks(sessions, run) for one in results]
    assert all(np.array_equal(one, results[0]) for one in results)
    if len(set(nodes)) == 1:
        in_order = own[0] + own[1] + own[2] + own[3]
        assert np.array_equal(results[0], in_order / size if op is ReduceOp.AVERAGE else in_order)


@pytest.mark.parametrize("nodes", [(0, 0), (0, 0, 1), (0, 0, 0, 0, 1, 1), (0, 1, 2, 0)])
def test_each_node_sends_what_one_rank_would(nodes: tuple[int, ...]) -> None:
    what = spec("x", 1 << 22)

    def sent(session: Session) -> int:
        exchange(session, what, np.ones(what.length, np.float32))
        assert isinstance(session.communicator, ParameterServer)
        return session.communicator.worker.bytes_sent

    with job(len(nodes), servers=2, nodes=nodes) as sessions:
        by_rank = run_ranks(sessions, sent)
    for node in set(nodes):
        ours = sum(sent for place, sent in zip(nodes, by_rank, strict=True) if place == node)
        assert abs(ours - (what.nbytes if len(set(nodes)) > 1 else 0)) < 0.03 * what.nbytes


def test_who_is_late_is_named_and_not_who_waits_for_him(caplog: pytest.LogCaptureFixture) -> None:
    what = spec("x", 200_000)
    with job(4, servers=2, nodes=(0, 0, 0, 1), stall_warning_s=0.1) as sessions:
        data = np.ones(what.length, np.float32)
        handles = [start(sessions[rank], what, data, None) for rank in (0, 1, 3)]
        while "waiting for rank 2," not in caplog.text:
            handles[0]._transfer.wait(0.2)
            late = sessions[0].communicator.missing("x")
            assert {rank for rank, _ in late} <= {2, 0, 1}, late
            if {rank for rank, _ in late} == {2}:
                break
        exchange(sessions[2], what, data)
        for handle in handles:
            handle.wait()


def test_without_memory_a_rank_says_so_once_and_pushes_by_itself(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    allocate, calls = os.posix_fallocate, []

    def some(descriptor: int, offset: int, length: int) -> None:
        calls.append(descriptor)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        allocate(descriptor, offset, length)

    monkeypatch.setattr(os, "posix_fallocate", some)
    what = spec("x", 100_000)
    with caplog.at_level(logging.WARNING), job(3, servers=2, nodes=(0, 0, 0)) as sessions:
        nodes = sessions[0].communicator.nodes  # type: ignore[attr-defined]
        assert sorted(map(len, nodes)) == [1, 2]
        results = run_ranks(sessions, lambda one: exchange(one, what, np.ones(what.length, np.float32)))
    assert all(np.all(result == 3) for result in results)
    told = [text for text in caplog.messages if "cannot share memory" in text]
    assert len(told) == 1, caplog.messages
    assert "No space left" in told[0]


def test_memory_that_is_asked_for_must_be_there() -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with pytest.raises(ConfigError, match=r"hierarchical is on.*File too large.*raise the limit"):
            Entrance.open(Config(hierarchical="on"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("told", [{"hierarchical": "off"}, {"local_size": 1}, {"size": 1}])
def test_who_shares_nothing_makes_nothing(told: dict[str, str]) -> None:
    before = os.listdir("/proc/self/fd")
    assert Entrance.open(Config(**told)) is None  # type: ignore[arg-type]
    assert os.listdir("/proc/self/fd") == before


def test_ranks_that_do_not_find_each_other_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Entrance.open

    def misled(config: Config) -> Entrance | None:
        entrance = opened(config)
        assert entrance is not None
        return dataclasses.replace(entrance, name="byteps-nowhere")

    monkeypatch.setattr(Entrance, "open", misled)
    with (
        pytest.raises(
            JoinError, match=r"rank 0 waited 1 s in vain for ranks 1, which.*BYTEPS_HIERARCHICAL=off"
        ),
        job(2, nodes=(0, 0), peer_timeout_s=1.0),
    ):
        pass


def test_strangers_at_the_door_are_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, strangers = Entrance.open, []

    def watched(config: Config) -> Entrance | None:
        entrance = opened(config)
        assert entrance is not None
        stranger = socket.socket(socket.AF_UNIX)
        stranger.connect(f"\0{entrance.name}")
        stranger.send(b"GET / HTTP/1.1\r\n\r\n")
        strangers.append(stranger)
        return entrance

    monkeypatch.setattr(Entrance, "open", watched)
    what = spec("x", 1000)
    with job(2, nodes=(0, 0)) as sessions:
        results = run_ranks(sessions, lambda one: exchange(one, what, np.ones(1000, np.float32)))
    assert all(np.all(result == 2) for result in results)
    for stranger in strangers:
        stranger.close()


def test_what_would_not_fit_the_wire_is_left_to_the_servers() -> None:
    nodes = [[0, 1], [2]]
    assert plan(spec("x", 1, DType.INT8, ReduceOp.AVERAGE), nodes) is None
    assert plan(spec("x", 1, DType.INT16, prescale=0.5), nodes) is None
    assert plan(spec("x", 1, DType.FLOAT16, ReduceOp.PRODUCT), nodes) is None
    assert plan(spec("x", 1, members=(0, 2)), nodes) is None
    assert plan(spec("x", 1, DType.INT8, ReduceOp.AVERAGE), [[0, 1, 2]]) is not None
    shared = plan(spec("x", 1, members=(0, 1)), nodes)
    assert shared is not None
    assert shared.server is None, "all of its ranks are on one node"


def test_nodes_are_of_those_who_are_in_one_place() -> None:
    assert nodes_of(["a", "b", "a"]) == [[0, 2], [1]]
    assert nodes_of(["", "", "a"]) == []
    assert nodes_of(["", "a", "", "a"]) == [[0], [1, 3], [2]]


def test_areas_of_many_ranks_and_lanes_fit_a_segment() -> None:
    for ranks in (2, 3, 8, 64, 200):
        for lanes in (1, 4):
            size = piece_bytes(ranks, lanes)
            assert size > 0
            assert size % 64 == 0
            assert ranks * lanes * 8 * size <= 8 << 20
