"""byteps.tensorflow beyond the contract: graphs, row-sparse gradients, optimizers, TensorFlow 1's calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import byteps.tensorflow as bps
from byteps.adapters.basics import _no_engine
from byteps.adapters.process_sets import ProcessSet, global_process_set
from byteps.errors import ConfigError, DeclarationError
from byteps.session import Session
from byteps.testing import cluster

from .conftest import Ranks
from .drivers.interface import Array
from .drivers.tensorflow_threads import tf

EARLY = pytest.mark.usefixtures("alone")


@pytest.fixture
def alone() -> Any:
    bps.init()
    yield
    bps.shutdown()


def test_a_graph_keeps_shapes_that_it_knows(ranks: Ranks) -> None:
    shapes = []

    def work(session: Session) -> list[Array]:
        @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32)], reduce_retracing=True)
        def run(tensor: Any) -> Any:
            reduced = bps.push_pull(tensor, session=session)
            copied = bps.broadcast(tensor, 1, session=session)
            shapes.extend([reduced.shape.as_list(), copied.shape.as_list()])
            return reduced, copied

        found = []
        for _ in range(3):  # unnamed tensors of a graph keep their names from run to run
            found = [result.numpy() for result in run(tf.fill([2, 3], 1.0 + session.rank))]
        return found

    for reduced, copied in ranks(2, work):
        assert (reduced == 1.5).all()
        assert (copied == 2.0).all()
    assert shapes == [[None, 3]] * 4


def test_the_gradient_of_a_broadcast_is_the_average_on_the_root(ranks: Ranks) -> None:
    def work(session: Session) -> list[float]:
        @tf.function
        def run(tensor: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(tensor)
                result = bps.broadcast(tensor, 1, session=session) * (2.0 + session.rank)
            return tape.gradient(result, tensor)

        return [float(run(tf.constant(1.0))), float(run.python_function(tf.constant(1.0)))]

    assert ranks(2, work) == [[0.0, 0.0], [2.5, 2.5]]


def test_gradients_of_gradients(ranks: Ranks) -> None:
    def work(session: Session) -> list[float]:
        tensor = tf.constant([1.0, 2.0])
        with tf.GradientTape() as outer:
            outer.watch(tensor)
            with tf.GradientTape() as inner:
                inner.watch(tensor)
                result = tf.reduce_sum(bps.push_pull(tensor**3, session=session))
            first = inner.gradient(result, tensor)
        found: list[float] = [*first.numpy().tolist(), *outer.gradient(first, tensor).numpy().tolist()]
        return found

    assert ranks(2, work) == [[3.0, 12.0, 6.0, 12.0]] * 2


def _slices(rank: int) -> Any:
    """Row 3 from both ranks, twice from rank 1, and one more row of each."""
    indices = [3, 0] if rank == 0 else [3, 5, 3]
    values = tf.ones([len(indices), 2]) * (rank + 1)
    return tf.IndexedSlices(values, tf.constant(indices), tf.constant([8, 2]))


@pytest.mark.parametrize("compiled", [False, True])
def test_rows_of_the_same_index_are_added(ranks: Ranks, compiled: bool) -> None:
    def work(session: Session) -> tuple[list[int], Array]:
        def run() -> Any:
            slices = bps.allreduce(_slices(session.rank), op=bps.Sum, session=session)
            average = bps.push_pull(_slices(session.rank), name="average", session=session)
            return slices.indices, slices.values, average.values

        call = tf.function(run) if compiled else run
        call()
        indices, values, average = call()
        assert np.array_equal(average * 2, values)
        return indices.numpy().tolist(), values.numpy()[:, 0]

    for indices, values in ranks(2, work):
        assert indices == [0, 3, 5]
        assert values.tolist() == [1.0, 5.0, 2.0]


def test_no_rows_at_all(ranks: Ranks) -> None:
    def work(session: Session) -> list[int]:
        rows = session.rank
        empty = tf.IndexedSlices(tf.ones([rows, 2]), tf.range(rows), tf.constant([8, 2]))
        none = tf.IndexedSlices(tf.ones([0, 2]), tf.range(0), tf.constant([8, 2]))
        found = [bps.push_pull(slices, session=session) for slices in (empty, none)]
        return [len(slices.indices) for slices in found]

    assert ranks(2, work) == [[1, 0]] * 2


def test_operators_that_rows_do_not_have(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        with pytest.raises(NotImplementedError, match=r"Max of IndexedSlices.*tf\.convert_to_tensor"):
            bps.allreduce(_slices(0), op=bps.Max, session=session)

    ranks(1, work)


@pytest.mark.parametrize("sparse_as_dense", [False, True])
def test_an_embedding_trains_as_in_one_process(ranks: Ranks, sparse_as_dense: bool) -> None:
    def train(session: Session | None, batches: list[list[int]]) -> Array:
        table = tf.Variable(tf.reshape(tf.range(12.0), [6, 2]) / 12, name="table")
        optimizer = tf.keras.optimizers.SGD(0.5)
        for indices in batches:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(tf.gather(table, indices)))
            if session is not None:
                tape = bps.DistributedGradientTape(tape, sparse_as_dense=sparse_as_dense, session=session)
            gradient = tape.gradient(loss, table)
            assert isinstance(gradient, tf.IndexedSlices) is not (sparse_as_dense and session is not None)
            optimizer.apply_gradients([(gradient, table)])
        found: Array = table.numpy()
        return found

    mine = [[[0, 1], [1, 1]], [[1, 5], [4, 0]]]
    wanted = train(None, [first + second for first, second in zip(*mine, strict=True)])
    for found in ranks(2, lambda session: train(session, mine[session.rank])):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_a_tape_in_every_step_makes_no_new_names(ranks: Ranks) -> None:
    def work(session: Session) -> int:
        variables = [tf.Variable([1.0]), tf.Variable([1.0, 2.0])]  # both call themselves Variable:0
        before: set[str] = set()
        for step in range(3):
            with tf.GradientTape() as tape:
                loss = tf.add_n([tf.reduce_sum(variable**2) for variable in variables])
            found = bps.DistributedGradientTape(tape, session=session).gradient(loss, {"a": variables})
            assert [gradient.numpy().tolist() for gradient in found["a"]] == [[2.0], [2.0, 4.0]]
            names = set(session.communicator._names._tensors) if step else set()  # type: ignore[attr-defined]
            assert not before or names == before
            before = names
        return len(before)

    ranks(2, work)


def test_what_a_keras_optimizer_was_is_kept(ranks: Ranks) -> None:
    schedule = tf.keras.optimizers.schedules.ExponentialDecay(0.5, 1, 0.5)

    def work(session: Session) -> list[float]:
        variable = tf.Variable([1.0, 1.0])
        plain = tf.keras.optimizers.SGD(schedule, momentum=0.5, clipnorm=100.0)
        optimizer = bps.DistributedOptimizer(plain, session=session)
        assert isinstance(optimizer, tf.keras.optimizers.SGD)
        assert optimizer.get_config() == plain.get_config()
        with pytest.raises(ValueError, match="distributed already"):
            bps.DistributedOptimizer(optimizer, session=session)
        gradient = tf.constant([1.0, 2.0]) * (session.rank + 1)
        for call in (optimizer.apply, lambda g, v: optimizer.apply_gradients(zip(g, v, strict=True))):
            call([gradient], [variable])
        again = type(optimizer).from_config(tf.keras.optimizers.SGD(1.0).get_config())
        again.apply_gradients([(gradient, variable)])
        found: list[float] = variable.numpy().tolist()
        return found

    # Steps of 0.5 and 0.25 on 1.5 times the gradient with momentum, then one of 1.
    first, second = 0.5 * 1.5, 0.25 * 1.5 + 0.5 * 0.5 * 1.5
    moved = first + second + 1.5
    for found in ranks(2, work):
        np.testing.assert_allclose(found, [1 - moved, 1 - 2 * moved], rtol=1e-6)


def test_variables_made_after_the_optimizer_was_built(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        optimizer = bps.DistributedOptimizer(tf.keras.optimizers.Adam(), session=session)
        with pytest.raises(ValueError, match=r"optimizer\.build\(model\.trainable_variables\)"):
            optimizer.apply([tf.ones(2)])
        known, late = tf.Variable(tf.ones(2), name="known"), tf.Variable(tf.ones(2), name="late")
        optimizer.apply([tf.ones(2)], [known])
        with pytest.raises(ValueError, match=r"without the variables late.*optimizer\.build"):
            optimizer.apply([tf.ones(2)], [late])

    ranks(2, work)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"op": bps.Max}, "must be Average or Sum"),
        ({"op": bps.Sum, "gradient_predivide_factor": 2.0}, "gradient_predivide_factor"),
        ({"process_set": 1}, "process_set"),
        ({"process_set": ProcessSet([0])}, "process_set"),
        ({"backward_passes_per_step": 2}, "gradient_accumulation_steps"),
    ],
)
@EARLY
def test_options_that_cannot_work(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bps.DistributedOptimizer(tf.keras.optimizers.SGD(), **options)


@EARLY
def test_the_set_of_all_ranks_is_no_other_than_none() -> None:
    one = tf.Variable([1.0])
    calls: list[Callable[[Any], Any]] = [
        lambda ranks: bps.allreduce(one, process_set=ranks),
        lambda ranks: bps.broadcast(one, 0, process_set=ranks),
        lambda ranks: bps.broadcast_variables([one], 0, process_set=ranks),
        lambda ranks: bps.broadcast_object(1, process_set=ranks),
        lambda ranks: bps.allgather_object(1, process_set=ranks),
    ]
    for call in calls:
        call(global_process_set)
        with pytest.raises(ValueError, match="not registered"):
            call(ProcessSet([0]))


@EARLY
def test_what_is_no_optimizer_tape_or_variable() -> None:
    with pytest.raises(TypeError, match=r"tf\.keras\.optimizers"):
        bps.DistributedOptimizer("sgd")
    with pytest.raises(TypeError, match="unexpected options compress"):
        bps.DistributedOptimizer(tf.keras.optimizers.SGD(), compress=bps.Compression.fp16)
    with pytest.raises(TypeError, match="GradientTape"):
        bps.DistributedGradientTape(None)
    with pytest.raises(ValueError, match=r"model\.build\(input_shape\)"):
        bps.broadcast_variables(tf.keras.Sequential([tf.keras.layers.Dense(3)]).variables, 0)


@EARLY
def test_ranks_and_sizes_as_tensors() -> None:
    calls = (bps.rank_op, bps.size_op, bps.local_rank_op, bps.local_size_op)
    assert [int(call()) for call in calls] == [0, 1, 0, 1]
    assert [int(value) for value in tf.function(lambda: [call() for call in calls])()] == [0, 1, 0, 1]


def test_xla_is_refused_with_the_reason() -> None:
    with cluster(2) as sessions:

        @tf.function(jit_compile=True)
        def outer(tensor: Any) -> Any:
            return tf.function(lambda t: bps.push_pull(t, session=sessions[0]))(tensor)

        with pytest.raises(RuntimeError, match="Pass jit_compile=False"):
            outer(tf.ones(2))


def test_a_graph_of_tensorflow_1(ranks: Ranks) -> None:
    def work(session: Session) -> tuple[list[float], list[float]]:
        with tf.Graph().as_default():
            weight = tf.compat.v1.get_variable("w", initializer=tf.ones(2) * (1.0 + session.rank))
            sgd = tf.compat.v1.train.GradientDescentOptimizer(1.0)
            optimizer = bps.DistributedOptimizer(sgd, session=session)
            assert isinstance(optimizer, tf.compat.v1.train.GradientDescentOptimizer)
            equal = bps.broadcast_variables(tf.compat.v1.global_variables(), 1, session=session)
            step = optimizer.minimize(tf.reduce_sum(weight * (session.rank + 1.0)))
            total = bps.allreduce(weight, op=bps.Sum, session=session)
            with tf.compat.v1.Session() as run:
                run.run(tf.compat.v1.global_variables_initializer())
                run.run(equal)
                before = run.run(total)
                run.run(step)
                return before.tolist(), run.run(weight).tolist()

    assert ranks(2, work) == [([4.0, 4.0], [0.5, 0.5])] * 2


@EARLY
def test_the_hook_makes_variables_the_roots() -> None:
    with pytest.raises(RuntimeError, match="broadcast_variables"):
        bps.broadcast_global_variables(0)
    with tf.Graph().as_default():
        tf.compat.v1.train.get_or_create_global_step()
        hook = bps.BroadcastGlobalVariablesHook(0)
        with tf.compat.v1.train.MonitoredTrainingSession(hooks=[hook]) as run:
            assert run.run(tf.compat.v1.train.get_global_step()) == 0


def test_torchrun_and_all_reduce_are_for_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    torchrun = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    for name, value in {**torchrun, "TORCHELASTIC_RUN_ID": "job", "MASTER_ADDR": "localhost"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="byteps run -np N"):
        bps.init()
    assert not bps.is_initialized()
    with (
        pytest.raises(ConfigError, match=r"needs byteps\.torch"),
        cluster(2, communicator="allreduce", engine=_no_engine),
    ):
        pass


def test_a_keras_optimizer_adds_rows_of_the_same_index(ranks: Ranks) -> None:
    def work(session: Session) -> list[float]:
        table = tf.Variable(tf.zeros([8, 2]), name="rows")
        optimizer = bps.DistributedOptimizer(tf.keras.optimizers.SGD(1.0), op=bps.Sum, session=session)
        optimizer.apply([_slices(session.rank)], [table])
        found: list[float] = table.numpy()[:, 0].tolist()
        return found

    assert ranks(2, work) == [[-1.0, 0.0, 0.0, -5.0, 0.0, -2.0, 0.0, 0.0]] * 2


def test_variables_made_after_wrapping(ranks: Ranks) -> None:
    def work(session: Session) -> list[float]:
        optimizer = bps.DistributedOptimizer(tf.keras.optimizers.SGD(1.0), session=session)
        first, late = (tf.Variable([float(start)], name="weight") for start in (0, 10))
        gradient = tf.constant([1.0 + session.rank])
        with tf.GradientTape() as tape:
            wrapped = bps.DistributedGradientTape(tape, session=session)
            made = tf.Variable([3.0], name="made")
            loss = tf.reduce_sum(made * gradient)
        (of_made,) = wrapped.gradient(loss, [made])
        optimizer.apply([gradient], [first])
        with pytest.raises(ValueError, match=r"optimizer\.build\(model\.trainable_variables\)"):
            optimizer.apply([gradient, gradient], [first, late])
        return [*of_made.numpy().tolist(), *first.numpy().tolist()]

    assert ranks(2, work) == [[1.5, -1.5]] * 2


@pytest.mark.parametrize("compiled", [False, True])
def test_rows_of_all_ranks_and_their_gradients(ranks: Ranks, compiled: bool) -> None:
    def work(session: Session) -> tuple[list[float], list[float]]:
        rank = session.rank

        def run(tensor: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(tensor)
                joined = bps.allgather(tensor, session=session)
                loss = tf.reduce_sum(joined * [[1.0], [10.0], [100.0]] * (rank + 1.0))
            assert joined.shape.as_list() in ([3, 2], [None, 2])
            return joined, tape.gradient(loss, tensor)

        call = tf.function(run) if compiled else run
        call(tf.fill([1 + rank, 2], 1.0 + rank))
        joined, gradient = call(tf.fill([1 + rank, 2], 1.0 + rank))
        return joined.numpy()[:, 0].tolist(), gradient.numpy()[:, 1].tolist()

    assert ranks(2, work) == [([1.0, 2.0, 2.0], [1.5]), ([1.0, 2.0, 2.0], [15.0, 150.0])]


def test_rows_that_do_not_fit_together(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        with pytest.raises(ValueError, match=r"tf\.reshape"):
            bps.allgather(tf.constant(1.0), session=session)
        with pytest.raises(DeclarationError, match=r"rank \d.*rank \d"):
            bps.allgather(tf.ones([2, 2 + session.rank]), name="unlike", session=session)
        assert bps.allgather(tf.ones([session.rank, 3]), name="none here", session=session).shape == [1, 3]

    ranks(2, work)
