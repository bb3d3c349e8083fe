"""Random programs of calls on 2 to 4 ranks give what a reference computes, whatever the ranks' orders."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from byteps.dtypes import CELL_BYTES, DType, ReduceOp
from byteps.session import Handle, Session
from byteps.testing import run_ranks
from byteps.wire import TensorSpec

from .arrays import Array, Job, expected, small_values, spec, start

LENGTHS = (0, 1, 7, 1000, CELL_BYTES // 4 + 1, CELL_BYTES)
OPS = tuple(op for op in ReduceOp if op is not ReduceOp.COPY)


@dataclass(frozen=True)
class Block:
    """Rounds that may be in flight together.

    Attributes:
        names: Named tensors, each once.
        unnamed: Lengths of unnamed ones, submitted in this order on every rank.
        in_turn: The rank that waits for each named round before it submits the next; -1: none.
        silent: The rank that contributes nothing; -1: none.
        keeps: Whether handles are waited for only in the next block.
        barrier: Whether a barrier ends the block.
    """

    names: tuple[str, ...]
    unnamed: tuple[int, ...]
    in_turn: int
    silent: int
    keeps: bool
    barrier: bool


@dataclass(frozen=True)
class Program:
    """What all ranks run, each in an order of its own.

    Attributes:
        tensors: What the names stand for.
    """

    size: int
    servers: int
    lanes: int
    credit_bytes: int
    scheduling: str
    tensors: dict[str, TensorSpec]
    blocks: tuple[Block, ...]
    seed: int


@st.composite
def tensors(draw: st.DrawFn, size: int) -> dict[str, TensorSpec]:
    specs = {}
    for name in "abcde"[: draw(st.integers(1, 5))]:
        dtype = draw(st.sampled_from([kind for kind in DType if kind is not DType.BOOL]))
        root = draw(st.integers(-1, size - 1))
        op = draw(st.sampled_from(OPS)) if root < 0 else ReduceOp.COPY
        specs[name] = spec(name, draw(st.sampled_from(LENGTHS)), dtype, op, root=root)
    return specs


def blocks(size: int, names: Sequence[str]) -> st.SearchStrategy[Block]:
    ranks = st.integers(-1, size - 1)
    return st.builds(
        Block,
        st.lists(st.sampled_from(names), unique=True, max_size=len(names)).map(tuple),
        st.lists(st.sampled_from(LENGTHS), max_size=3).map(tuple),
        ranks,
        ranks,
        st.booleans(),
        st.booleans(),
    )


@st.composite
def programs(draw: st.DrawFn) -> Program:
    size = draw(st.integers(2, 4))
    specs = draw(tensors(size))
    return Program(
        size,
        servers=draw(st.integers(1, 3)),
        lanes=draw(st.integers(1, 2)),
        credit_bytes=draw(st.sampled_from([1, CELL_BYTES, 1 << 24])),
        scheduling=draw(st.sampled_from(["priority", "fifo", "stop-and-wait"])),
        tensors=specs,
        blocks=tuple(draw(st.lists(blocks(size, list(specs)), min_size=1, max_size=5))),
        seed=draw(st.integers(0, 2**16)),
    )


def contribution(what: TensorSpec, label: str, block: int, rank: int) -> Array:
    return small_values(DType(what.dtype), what.length, [*label.encode(), block, rank])


def is_silent(what: TensorSpec, silent: int, rank: int) -> bool:
    return rank != what.root if what.op == ReduceOp.COPY else rank == silent


def wanted(what: TensorSpec, label: str, block: int, silent: int, size: int) -> Array:
    """What every rank must get. An average counts the silent rank too: as nothing, not as zero."""
    given = [
        contribution(what, label, block, rank) for rank in range(size) if not is_silent(what, silent, rank)
    ]
    if what.op == ReduceOp.AVERAGE and len(given) < size:
        given.append(np.zeros_like(given[0]))
    return expected(what, given)


@dataclass
class Rank:
    """One rank running a program."""

    session: Session
    program: Program
    in_flight: dict[str, Handle] = field(default_factory=dict)
    results: dict[tuple[int, str], Array] = field(default_factory=dict)

    def run(self) -> dict[tuple[int, str], Array]:
        shuffle = random.Random(self.program.seed * 8 + self.session.rank)
        for number, block in enumerate(self.program.blocks):
            for call in self.calls(number, block, shuffle):
                call()
            if not block.keeps:
                self.wait_for(shuffle.sample(sorted(self.in_flight), len(self.in_flight)))
            if block.barrier:
                self.session.barrier()
        self.wait_for(list(self.in_flight))
        return self.results

    def calls(self, number: int, block: Block, shuffle: random.Random) -> list[Callable[[], None]]:
        """The block's calls: the named ones in any order, the unnamed ones in theirs, mixed."""
        names = shuffle.sample(block.names, len(block.names))
        mixed: list[Callable[[], None]] = [partial(self.named, number, block, name) for name in names]
        positions = sorted(shuffle.randint(0, len(names)) for _ in block.unnamed)
        for count, (position, length) in enumerate(zip(positions, block.unnamed, strict=True)):
            mixed.insert(position + count, partial(self.unnamed, number, block, count, length))
        return mixed

    def named(self, number: int, block: Block, name: str) -> None:
        self.wait_for([name] if name in self.in_flight else [])
        self.submit(self.program.tensors[name], name, number, block.silent)
        if block.in_turn == self.session.rank:
            self.wait_for([name])

    def unnamed(self, number: int, block: Block, count: int, length: int) -> None:
        what = spec(self.session.next_name("push_pull"), length, ephemeral=True)
        self.submit(what, f"unnamed {count}", number, block.silent)

    def submit(self, what: TensorSpec, label: str, block: int, silent: int) -> None:
        own = contribution(what, label, block, self.session.rank)
        gives = not is_silent(what, silent, self.session.rank)
        into = own if block % 2 else np.full_like(own, 1)
        self.results[block, label] = into
        self.in_flight[what.name] = start(self.session, what, own if gives else None, into, block)

    def wait_for(self, names: Sequence[str]) -> None:
        for name in names:
            self.in_flight.pop(name).wait()


def check(job: Job, program: Program) -> None:
    """Run a program; compare with the reference."""
    configuration = {
        "connections": program.lanes,
        "credit_bytes": program.credit_bytes,
        "scheduling": program.scheduling,
        "partition_bytes": CELL_BYTES,
    }
    with job(program.size, program.servers, **configuration) as sessions:
        results = run_ranks(sessions, lambda session: Rank(session, program).run())
    labels = [
        (number, label)
        for number, block in enumerate(program.blocks)
        for label in [*block.names, *(f"unnamed {count}" for count in range(len(block.unnamed)))]
    ]
    for rank, result in enumerate(results):
        assert sorted(result) == sorted(labels)
        for (number, label), array in result.items():
            block = program.blocks[number]
            unnamed = label.partition("unnamed ")[2]
            what = spec(label, block.unnamed[int(unnamed)]) if unnamed else program.tensors[label]
            right = wanted(what, label, number, block.silent, program.size)
            assert np.array_equal(array, right), f"rank {rank}, block {number}, {label}"


@settings(
    max_examples=120,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(programs())
@pytest.mark.timeout(120)
def test_random_programs(job: Job, program: Program) -> None:
    check(job, program)
