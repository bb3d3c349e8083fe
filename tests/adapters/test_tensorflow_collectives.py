"""Horovod's collectives of TensorFlow tensors against numpy: random shapes, dtypes, splits, ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import byteps.tensorflow as bps
from byteps.errors import DeclarationError
from byteps.session import Session
from byteps.testing import cluster, run_ranks

from .conftest import Ranks
from .drivers.interface import Array
from .drivers.tensorflow_threads import tf

DTYPES = ("float64", "float32", "float16", "uint8", "int8", "int16", "int32", "int64")
OPS = [bps.Sum, bps.Average, bps.Min, bps.Max, bps.Product]
RANDOM = settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
SIZES = st.integers(2, 4)
TRAILING = st.lists(st.integers(0, 4), max_size=2).map(tuple)
COMMUNICATORS = st.sampled_from(["parameter-server", "allreduce"])


def values(shape: Sequence[int], dtype: str, seed: int) -> Array:
    """Small whole numbers, which every dtype sums exactly."""
    return np.random.default_rng(seed).integers(0, 6, tuple(shape)).astype(dtype)


def reduced(arrays: Sequence[Array], op: Any, scale: float = 1.0) -> Array:
    """What numpy makes of them; averages of integers truncate."""
    stacked = np.stack(arrays)
    found = {
        bps.Sum: lambda: stacked.astype(np.float64).sum(0) * scale,
        bps.Average: lambda: stacked.astype(np.float64).sum(0) * scale / len(arrays),
        bps.Min: lambda: stacked.min(0) * scale,
        bps.Max: lambda: stacked.max(0) * scale,
        bps.Product: lambda: stacked.prod(0, dtype=stacked.dtype),
    }[op]()
    return np.asarray(found).astype(stacked.dtype)


def run(size: int, communicator: str, function: Callable[[Session], Any]) -> list[Any]:
    with cluster(size, 2, communicator=communicator, stall_timeout_s=20.0) as sessions:
        return run_ranks(sessions, function)


def both(call: Callable[[], Any]) -> list[Any]:
    """The results of a call, and of the same in a graph that runs twice."""
    compiled = tf.function(call)
    compiled()
    return [tf.nest.map_structure(lambda tensor: tensor.numpy(), one()) for one in (call, compiled)]


def tolerance(dtype: str) -> float:
    """Results are exact but for the rounding of averages: of half precision to 11 bits."""
    return 1e-3 if dtype == "float16" else 1e-6


@RANDOM
@given(st.data(), SIZES, TRAILING, st.sampled_from(DTYPES), COMMUNICATORS)
def test_rows_of_all_and_rows_for_each(
    data: Any, size: int, trailing: tuple[int, ...], dtype: str, kind: str
) -> None:
    row = st.lists(st.integers(0, 3), min_size=size, max_size=size)
    splits = data.draw(st.lists(row, min_size=size, max_size=size))
    arrays = [values((sum(own), *trailing), dtype, rank) for rank, own in enumerate(splits)]
    parts = [np.split(one, np.cumsum(own)[:-1]) for one, own in zip(arrays, splits, strict=True)]

    def exchange(session: Session) -> list[Any]:
        own, to = tf.constant(arrays[session.rank]), splits[session.rank]

        def call() -> Any:
            pair = bps.grouped_allgather([own, own[:1]], session=session)
            counts = tf.constant(to) + 0  # a graph does not know their values
            return [*pair, *bps.alltoall(own, counts, session=session)]

        return both(call)

    for rank, found in enumerate(run(size, kind, exchange)):
        for joined, first, received, counts in found:
            assert joined.dtype == received.dtype == dtype
            np.testing.assert_array_equal(joined, np.concatenate(arrays))
            np.testing.assert_array_equal(first, np.concatenate([one[:1] for one in arrays]))
            np.testing.assert_array_equal(received, np.concatenate([each[rank] for each in parts]))
            assert counts.tolist() == [splits[sender][rank] for sender in range(size)]
            assert counts.dtype == np.int32


@RANDOM
@given(SIZES, st.integers(0, 9), TRAILING, st.sampled_from(DTYPES), st.sampled_from(OPS), COMMUNICATORS)
def test_reductions_and_shares_of_their_rows(
    size: int, rows: int, trailing: tuple[int, ...], dtype: str, op: Any, kind: str
) -> None:
    arrays = [values((rows, *trailing), dtype, rank) for rank in range(size)]
    others = [values(trailing, "float32", 10 + rank) for rank in range(size)]
    scale = 1.0 if op == bps.Product else 2.0
    factors: dict[str, float] = {"prescale_factor": scale}

    def reduce(session: Session) -> list[Any]:
        own, other = tf.constant(arrays[session.rank]), tf.constant(others[session.rank])
        options: dict[str, Any] = {"op": op, "session": session, **factors}

        def call() -> Any:
            share = bps.reducescatter(own, **options)
            assert share.shape[1:] == own.shape[1:]
            two = bps.grouped_reducescatter([own, own], **options)
            return [
                share,
                *two,
                bps.allreduce(own, **options),
                *bps.grouped_allreduce([own, other], **options),
            ]

        return both(call)

    wanted, beside = reduced(arrays, op, scale), reduced(others, op, scale)
    shares = np.array_split(wanted, size)
    for rank, found in enumerate(run(size, kind, reduce)):
        for results in found:
            for result in results[:3]:
                assert result.dtype == dtype
                np.testing.assert_allclose(result, shares[rank], rtol=tolerance(dtype))
            for result in results[3:5]:
                np.testing.assert_allclose(result, wanted, rtol=tolerance(dtype))
            np.testing.assert_allclose(results[5], beside, rtol=1e-6)


@RANDOM
@given(st.data(), SIZES)
def test_values_are_those_of_the_members(data: Any, size: int) -> None:
    members = sorted(data.draw(st.sets(st.integers(0, size - 1), min_size=1)))
    root = data.draw(st.sampled_from(members))

    def work(session: Session) -> None:
        chosen = bps.add_process_set(members, session=session) if len(members) < size else None
        rank = session.rank
        everybody = bps.push_pull(tf.ones(1), op=bps.Sum, name="same", session=session)
        if rank in members:
            some: dict[str, Any] = {"process_set": chosen, "session": session}
            name, one = "same" if chosen else "other", tf.fill([3], float(rank))
            assert bps.allreduce(one, name=name, **some).numpy() == pytest.approx([np.mean(members)] * 3)
            assert bps.broadcast(one, root, **some).numpy().tolist() == [root] * 3
            assert bps.allgather(one[:1], **some).numpy().tolist() == members
            exchanged = bps.alltoall(tf.fill([len(members)], rank), **some)
            assert exchanged.numpy().tolist() == members
            scattered = bps.reducescatter(tf.ones(len(members)), op=bps.Sum, **some)
            assert scattered.numpy().tolist() == [len(members)]
            (grouped,) = bps.grouped_allreduce([one[:1]], op=bps.Max, **some)
            assert grouped.numpy().tolist() == members[-1:]
            slices = tf.IndexedSlices(one[:1], tf.constant([rank]), tf.constant([size]))
            rows = bps.allreduce(slices, op=bps.Average, **some)
            assert rows.indices.numpy().tolist() == members
            assert (rows.values.numpy() * len(members)).tolist() == members
            variable = tf.Variable(one)
            (same,) = bps.broadcast_([variable], root, process_set=chosen, session=session)
            assert same is variable
            assert variable.numpy().tolist() == [root] * 3
            objects: dict[str, Any] = {"session": session, "process_set": chosen}
            assert bps.broadcast_object({"rank": rank}, root, **objects) == {"rank": root}
            assert bps.broadcast_object_fn(root, **objects)(rank) == root
            assert bps.allgather_object(rank, **objects) == members
        assert everybody.numpy() == size

    with cluster(size, 2, stall_timeout_s=20.0) as sessions:
        run_ranks(sessions, work)


@pytest.mark.parametrize("compiled", [False, True])
def test_training_of_a_process_set(compiled: bool) -> None:
    def train(session: Session) -> list[float]:
        pair = bps.add_process_set([0, 2], session=session)
        weights = [tf.Variable([0.0]), tf.Variable([0.0])]
        sgd = [tf.keras.optimizers.SGD(1.0) for _ in weights]
        options: dict[str, Any] = {"op": bps.Sum, "process_set": pair, "session": session}
        optimizer = bps.DistributedOptimizer(sgd[0], **options)
        for one, weight in zip(sgd, weights, strict=True):
            one.build([weight])

        def step() -> None:
            with tf.GradientTape(persistent=True) as tape:
                loss = tf.add_n(weights) * (1.0 + session.rank)
            optimizer.apply([tape.gradient(loss, weights[0])], weights[:1])
            tape = bps.DistributedGradientTape(tape, **options)
            sgd[1].apply([tape.gradient(loss, weights[1])], weights[1:])

        call = tf.function(step) if compiled else step
        for _ in range(2):
            call()
        return [float(weight[0]) for weight in weights]

    with cluster(3, 2, stall_timeout_s=20.0) as sessions:
        assert run_ranks(sessions, train) == [[-8.0] * 2, [-4.0] * 2, [-8.0] * 2]  # rank 1 on its own


@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_follow_the_rows(ranks: Ranks, compiled: bool) -> None:
    def differentiate(session: Session) -> list[Any]:
        rank, size = session.rank, session.size
        options: dict[str, Any] = {"session": session}

        def gradients(tensor: Any, forward: Callable[[Any], Any]) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(tensor)
                loss = tf.reduce_sum(forward(tensor) * (rank + 1.0))
            return tape.gradient(loss, tensor)

        def call() -> Any:
            whole, half = tf.ones(4), tf.ones(2, tf.float16)
            return [
                gradients(tf.ones(size), lambda one: bps.alltoall(one, [1] * size, **options)[0]),
                gradients(whole, lambda one: bps.reducescatter(one, op=bps.Average, **options)),
                gradients(whole, lambda one: bps.reducescatter(one, op=bps.Sum, **options)),
                gradients(whole, lambda one: bps.grouped_allreduce([one], op=bps.Sum, **options)[0]),
                gradients(half, lambda one: bps.allreduce(one, compression=bps.Compression.fp16, **options)),
            ]

        run = tf.function(call) if compiled else call
        run()
        return [one.numpy().tolist() for one in run()]

    for found in ranks(3, differentiate):
        assert found == [[1, 2, 3], [1, 1, 2, 3], [3, 3, 6, 9], [6, 6, 6, 6], [2, 2]]


def pairwise_adasum(one: Array, other: Array) -> Array:
    dot = one @ other
    return np.asarray(one * (1 - dot / (2 * one @ one)) + other * (1 - dot / (2 * other @ other)))


def test_adasum(ranks: Ranks) -> None:
    given_arrays = [np.random.default_rng(rank).standard_normal(21).astype(np.float32) for rank in range(2)]
    wanted = pairwise_adasum(*(one.astype(np.float64) for one in given_arrays)).reshape(3, 7)

    def combine(session: Session) -> list[Any]:
        own = tf.reshape(tf.constant(given_arrays[session.rank]), [3, 7])
        options: dict[str, Any] = {"op": bps.Adasum, "session": session}
        half = bps.allreduce(tf.cast(own, tf.bfloat16), **options)
        assert half.dtype == tf.bfloat16
        with pytest.raises(ValueError, match="floating-point"):
            bps.allreduce(tf.constant([1]), **options)
        with pytest.raises(ValueError, match="prescale_factor"):
            bps.allreduce(own, prescale_factor=2.0, **options)
        with pytest.raises(NotImplementedError, match="IndexedSlices"):
            bps.allreduce(tf.IndexedSlices(own, tf.range(3), tf.constant([8, 7])), **options)
        with tf.GradientTape() as tape:
            tape.watch(own)
            result = bps.allreduce(own, **options)
        with pytest.raises(ValueError, match="no gradient"):
            tape.gradient(result, own)
        return both(lambda: bps.allreduce(own, **options))

    for found in ranks(2, combine):
        for result in found:
            np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-5)


def test_ranks_with_less_data_stand_in_for_others(ranks: Ranks) -> None:
    def work(session: Session) -> tuple[list[Any], int]:
        found = []
        for step in range(1 + session.rank):
            average = bps.allreduce(tf.ones(3), name=f"step {step}", session=session)
            rows = bps.allgather(tf.fill([1], session.rank), session=session)
            found.append((average.numpy()[0], rows.numpy().tolist()))
        return found, bps.join(session=session)

    first = (1.0, [0, 1])
    assert ranks(2, work) == [([first], 1), ([first, (0.5, [1])], 1)]


def raised(function: Callable[[], Any]) -> str:
    try:
        function()
    except DeclarationError as error:
        return str(error)
    except tf.errors.OpError as error:
        return str(error.message)
    return ""


MISMATCHES: dict[str, Callable[..., Any]] = {
    "allgather": lambda tensor, name, **more: bps.allgather(tensor, name, **more),
    "alltoall": lambda tensor, name, **more: bps.alltoall(tensor, [0, 0, len(tensor)], name, **more),
    "reducescatter": lambda tensor, name, **more: bps.reducescatter(tensor, name=name, **more),
    "grouped_allreduce": lambda tensor, name, **more: bps.grouped_allreduce(
        [tf.zeros(2), tensor], name=name, **more
    ),
}
OTHERS = {"shape": ([4, 3], tf.float32), "dtype": ([4, 2], tf.int64), "dims": ([4], tf.float32)}


@pytest.mark.parametrize("what", OTHERS)
@pytest.mark.parametrize("kind", MISMATCHES)
def test_what_does_not_fit_raises_on_all_ranks_naming_two(ranks: Ranks, kind: str, what: str) -> None:
    def attempt(session: Session) -> list[str]:
        def call(shape: Any, dtype: Any, name: str) -> None:
            MISMATCHES[kind](tf.zeros(shape, dtype), name, session=session)

        usual = ([4, 2], tf.float32)
        own = OTHERS[what] if session.rank == 1 else usual
        fresh, compiled = (raised(lambda: call(*own, "x")), raised(lambda: tf.function(call)(*own, "y")))
        return [fresh, compiled, raised(lambda: call(*usual, "x")), raised(lambda: call(*usual, "y"))]

    for fresh, compiled, agreed, again in ranks(3, attempt):
        for message in (fresh, compiled):
            assert "rank 1" in message, message
            assert "rank 0" in message or "rank 2" in message, message
        assert agreed == again == "", "the names are free for what fits"


def test_what_cannot_work_is_refused_at_once(ranks: Ranks) -> None:
    def attempt(session: Session) -> None:
        options: dict[str, Any] = {"session": session}
        for splits in ([3], [1, 1], [-1, 4]):
            with pytest.raises(ValueError, match="splits"):
                bps.alltoall(tf.zeros(3), splits, **options)
        for wrong in ([[1, 2]], [True, True], [1.0, 2.0]):
            with pytest.raises(ValueError, match="splits="):
                bps.alltoall(tf.zeros(3), wrong, **options)
        with pytest.raises(ValueError, match="equal parts"):
            bps.alltoall(tf.zeros(3), **options)
        for call in (bps.reducescatter, bps.alltoall):
            with pytest.raises(ValueError, match="scalar"):
                call(tf.constant(1.0), **options)
        for group in (bps.grouped_allreduce, bps.grouped_allgather, bps.grouped_reducescatter):
            with pytest.raises(ValueError, match="at least one"):
                group([], **options)
        with pytest.raises(TypeError, match="unexpected keyword arguments: factor"):
            bps.reducescatter(tf.zeros(2), factor=1, **options)
        assert bps.allgather(tf.ones(1), **options).numpy().tolist() == [1.0, 1.0]

    ranks(2, attempt)


def test_queries_need_no_job_and_sets_may_come_with_it() -> None:
    for name in ("mpi", "ddl", "ccl", "cuda", "rocm", "nccl"):
        assert not getattr(bps, f"{name}_built")(), name
    assert (bps.gloo_built(), bps.gloo_enabled(), bps.mpi_enabled()) == (True, True, False)
    with pytest.raises(ValueError, match="ProcessSet"):
        bps.init(process_sets=[[0]])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="comm="):
        bps.init(comm=[0])
    bps.init(process_sets="dynamic")
    try:
        assert (bps.cross_rank(), bps.cross_size(), bps.is_homogeneous(), bps.join()) == (0, 1, True, 0)
        assert [int(bps.size_op()), int(bps.process_set_included_op())] == [1, 1]
        with pytest.raises(ValueError, match="no process set 7"):
            bps.size_op(7)
    finally:
        bps.shutdown()
