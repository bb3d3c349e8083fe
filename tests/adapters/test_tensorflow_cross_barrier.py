"""byteps.tensorflow.CrossBarrier: equal to plain training, does not wait for late gradients, refusals."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import byteps.tensorflow as bps
from byteps.session import Session
from byteps.testing import cluster

from .conftest import Ranks
from .drivers.interface import Array
from .drivers.tensorflow_threads import tf

STEPS = 6
optimizers = tf.keras.optimizers
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "momentum": lambda: optimizers.SGD(0.1, momentum=0.9),
    "adamw": lambda: optimizers.AdamW(0.01, weight_decay=0.1, clipnorm=1.0),
    "adam, schedule": lambda: optimizers.Adam(optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)),
}


def batch(rank: int, step: int) -> tuple[Array, Array]:
    random = np.random.default_rng([rank, step])
    inputs = random.standard_normal((4, 5)).astype(np.float32)
    return inputs, np.sin(inputs[:, :3])


def model() -> list[Any]:
    random = np.random.default_rng(0)
    shapes = ((5, 7), (7,), (7, 3), (3,))
    return [tf.Variable(random.standard_normal(shape).astype(np.float32)) for shape in shapes]


def loss_of(variables: list[Any], inputs: Any, targets: Any) -> Any:
    hidden = tf.tanh(inputs @ variables[0] + variables[1])
    return tf.reduce_mean(tf.square(hidden @ variables[2] + variables[3] - targets))


def alone(make: Callable[[], Any]) -> list[Array]:
    """What one process makes of the batches of both ranks; the rate changes after half of the steps."""
    variables, optimizer = model(), make()
    for step in range(STEPS):
        pairs = [batch(rank, step) for rank in range(2)]
        with tf.GradientTape() as tape:
            loss = loss_of(variables, *(np.concatenate(one) for one in zip(*pairs, strict=True)))
        optimizer.apply(tape.gradient(loss, variables), variables)
        halve(optimizer, step)
    return [variable.numpy() for variable in variables]


def halve(optimizer: Any, step: int) -> None:
    if step == STEPS // 2 and isinstance(optimizer._learning_rate, tf.keras.Variable):
        optimizer.learning_rate = float(optimizer.learning_rate) / 2


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_equals_one_process(ranks: Ranks, name: str) -> None:
    def train(session: Session) -> tuple[list[Array], int]:
        variables = model()
        crossing = bps.CrossBarrier(OPTIMIZERS[name](), variables, session=session)

        @tf.function
        def step(inputs: Any, targets: Any) -> None:
            crossing.update()
            with tf.GradientTape() as tape:
                loss = loss_of(variables, inputs, targets)
            crossing.apply(tape.gradient(loss, variables))

        for number in range(STEPS):
            step(*map(tf.constant, batch(session.rank, number)))
            halve(crossing.optimizer, number)
        crossing.flush()
        crossing.flush()
        return [variable.numpy() for variable in variables], int(crossing.optimizer.iterations)

    wanted = alone(OPTIMIZERS[name])
    for found, iterations in ranks(2, train):
        assert iterations == STEPS
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


class Held:
    """A round whose result comes once the next forward pass has begun."""

    def __init__(self, begun: Any, forward: threading.Event) -> None:
        self._begun, self._forward = begun, forward

    def wait(self) -> list[Array]:
        assert self._forward.wait(20), "the forward pass waited for the last layer's gradient"
        found: list[Array] = self._begun.wait()
        return found


def test_the_forward_pass_begins_while_the_last_gradient_is_still_to_come(ranks: Ranks) -> None:
    def train(session: Session) -> list[float]:
        first, last = tf.Variable([1.0, 2.0]), tf.Variable([3.0, 4.0])
        crossing = bps.CrossBarrier(optimizers.SGD(1.0), [first, last], op=bps.Sum, session=session)
        forward = threading.Event()

        @tf.autograph.experimental.do_not_convert
        def noted(array: Array) -> Array:
            forward.set()
            return array

        @tf.function
        def step() -> Any:
            crossing.update()
            with tf.GradientTape() as tape:
                seen = tf.numpy_function(noted, [tf.stop_gradient(first) + 0], tf.float32, stateful=False)
                seen.set_shape([2])
                loss = tf.reduce_sum(first * 0.5 + tf.stop_gradient(seen) * 0 + last)
            crossing.apply(tape.gradient(loss, [first, last]))
            return loss

        losses = []
        for _ in range(3):
            losses.append(float(step()))
            forward.clear()
            crossing._rounds[1] = Held(crossing._rounds[1], forward)
        forward.set()
        crossing.flush()
        return [*losses, *last.numpy().tolist()]

    # Each step moves `first` by 1 and `last` by 2, elements alike: the loss falls by 2 * (0.5 + 2).
    assert ranks(2, train) == [[8.5, 3.5, -1.5, -3.0, -2.0]] * 2


def test_compression_unused_variables_and_leaving_with_a_step_under_way(ranks: Ranks) -> None:
    kept: dict[int, list[Any]] = {}

    def train(session: Session) -> None:
        variables = [tf.Variable([1.0]), tf.Variable([5.0])]
        crossing = bps.CrossBarrier(
            optimizers.SGD(1.0), variables, compression=bps.Compression.fp16, session=session
        )
        kept[session.rank] = [crossing, variables]

        @tf.function
        def step() -> None:
            crossing.update()
            with tf.GradientTape() as tape:
                loss = variables[0] * (1.0 + session.rank)
            crossing.apply(tape.gradient(loss, variables))

        step()
        session.shutdown()

    ranks(2, train)
    assert [float(variables[0][0]) for _, variables in kept.values()] == [-0.5, -0.5]
    assert [float(variables[1][0]) for _, variables in kept.values()] == [5.0, 5.0]


def test_one_worker_steps_as_the_plain_optimizer_does(ranks: Ranks) -> None:
    def train(session: Session) -> list[float]:
        variable = tf.Variable([1.0])
        crossing = bps.CrossBarrier(optimizers.SGD(1.0), [variable], session=session)

        @tf.function
        def step() -> None:
            crossing.update()
            crossing.apply([tf.constant([2.0])])

        step()
        return [float(variable[0]), int(crossing.optimizer.iterations)]

    assert ranks(1, train) == [[-1.0, 1]]


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "global norm": (lambda: optimizers.SGD(global_clipnorm=1.0), "global_clipnorm= needs all"),
    "average": (lambda: optimizers.SGD(use_ema=True), "use_ema= needs all"),
    "accumulation": (
        lambda: optimizers.SGD(gradient_accumulation_steps=2),
        "gradient_accumulation_steps= needs all",
    ),
    "loss scale": (lambda: optimizers.LossScaleOptimizer(optimizers.SGD()), "scales the loss"),
    "one product for all": (optimizers.Nadam, "does not treat each variable by itself"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_optimizers_that_need_all_variables_at_once(ranks: Ranks, name: str) -> None:
    make, message = REFUSED[name]

    def work(session: Session) -> None:
        with pytest.raises(ValueError, match=message):
            bps.CrossBarrier(make(), model(), session=session)

    ranks(1, work)


def test_wrong_use_is_refused_with_the_reason() -> None:
    variables = model()
    with cluster(2) as sessions:
        options: dict[str, Any] = {"session": sessions[0]}
        with pytest.raises(TypeError, match=r"tf\.keras optimizer"):
            bps.CrossBarrier("sgd", variables, **options)
        with pytest.raises(ValueError, match="compression="):
            bps.CrossBarrier(optimizers.SGD(), variables, compression=object(), **options)
        crossing = bps.CrossBarrier(optimizers.SGD(), variables, **options)
        for call in (crossing.update, lambda: crossing.apply([])):
            with pytest.raises(RuntimeError, match=r"within tf\.function only: eager code"):
                call()
        with pytest.raises(RuntimeError, match="call update"):
            tf.function(crossing.flush)()
        with pytest.raises(ValueError, match=r"expected 4 gradients.*model\.build\(input_shape\)"):
            tf.function(lambda: crossing.apply([]))()
        with pytest.raises(RuntimeError, match="jit_compile=False"):
            tf.function(crossing.update, jit_compile=True)()
        network = tf.keras.Sequential([tf.keras.layers.Dense(1)])
        with pytest.raises(ValueError, match=r"no variables.*model\.build\(input_shape\)"):
            bps.CrossBarrier(optimizers.SGD(), network.trainable_variables, **options)
        with pytest.raises(ValueError, match="not for Keras's fit"):
            network.compile(crossing)


def test_two_steps_without_an_update_between_them(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        crossing = bps.CrossBarrier(optimizers.SGD(), [tf.Variable([1.0])], session=session)
        step = tf.function(lambda: crossing.apply([tf.ones(1)]))
        step()
        with pytest.raises(tf.errors.OpError, match=r"not applied.*by update"):
            step()

    ranks(2, work)
