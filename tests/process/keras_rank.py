"""Keras as one rank of a job trains it, over the backend of KERAS_BACKEND. Run by test_keras."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np

import byteps.keras as bps
from byteps.adapters.current import current
from byteps.adapters.optimizer_class import is_distributed

SIZE, STEPS, BATCH, RATE = 2, 30, 4, 0.1
BACKEND = keras.backend.backend()


def data(rank: int | None) -> tuple[Any, Any]:
    """Inputs [STEPS * BATCH, 5] and targets [.., 3] of one rank; None: each batch has those of all ranks."""
    if rank is None:
        parts = [data(one) for one in range(SIZE)]
        batches = [np.stack([part[n].reshape(STEPS, BATCH, -1) for part in parts], 1) for n in (0, 1)]
        return batches[0].reshape(STEPS * SIZE * BATCH, -1), batches[1].reshape(STEPS * SIZE * BATCH, -1)
    generator = np.random.default_rng(rank)
    inputs = generator.normal(size=(STEPS * BATCH, 5)).astype(np.float32)
    return inputs, np.sin(inputs[:, :3])


def build(seed: int) -> Any:
    keras.utils.set_random_seed(seed)
    dense = keras.layers.Dense
    return keras.Sequential([keras.layers.Input((5,)), dense(7, activation="tanh"), dense(3)])


def optimizer() -> Any:
    return keras.optimizers.SGD(RATE, momentum=0.9)


def fit(model: Any, rank: int | None, batch: int, callbacks: list[Any], epochs: int = 1) -> Any:
    inputs, targets = data(rank)
    history = model.fit(
        inputs, targets, batch, epochs, shuffle=False, verbose=0, callbacks=callbacks, validation_split=0
    )
    return history.history


def noted() -> list[tuple[str, int]]:
    """Names and priorities of what is sent from now on."""
    session, found = current(), []
    submit = session.submit

    def noting(spec: Any, *arguments: Any, priority: int = 0, **none: Any) -> Any:
        found.append((spec.name, priority))
        return submit(spec, *arguments, priority=priority)

    session.submit = noting  # type: ignore[method-assign]
    return found


def training_equals_one_process() -> None:
    alone = build(0)
    alone.compile(optimizer(), "mse")
    fit(alone, None, SIZE * BATCH, [])

    model = build(bps.rank())  # different weights: the callback makes them equal
    model.compile(bps.DistributedOptimizer(optimizer()), "mse")
    assert isinstance(model.optimizer, keras.optimizers.SGD)
    sent = noted()
    fit(model, bps.rank(), BATCH, [bps.callbacks.BroadcastGlobalVariablesCallback(0)])
    for found, wanted in zip(model.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    of_gradients = [(name, priority) for name, priority in sent if name.startswith("gradient")]
    assert len(of_gradients) == STEPS * 4
    by_urgency = sorted(dict(of_gradients).items(), key=lambda pair: -pair[1])
    assert [name.rpartition("/")[2] for name, _ in by_urgency] == ["kernel", "bias"] * 2
    assert by_urgency[0][0] < by_urgency[2][0]  # the first layer is the most urgent


def callbacks_and_checkpoints() -> None:
    rates: list[float] = []

    class Noting(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            rates.append(float(self.model.optimizer.learning_rate))

    model = build(1 + bps.rank())
    model.compile(bps.DistributedOptimizer(optimizer(), compression=bps.Compression.fp16), "mse")
    own: list[float] = []

    class Own(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            own.append(logs["loss"])

    history = fit(
        model,
        bps.rank(),
        BATCH,
        [
            bps.callbacks.BroadcastGlobalVariablesCallback(0),
            Own(),
            bps.callbacks.MetricAverageCallback(),
            bps.callbacks.LearningRateWarmupCallback(RATE, warmup_epochs=2, verbose=1),
            bps.callbacks.LearningRateScheduleCallback(RATE, 0.5, start_epoch=2),
            bps.callbacks.BestModelCheckpoint("loss", filepath=f"best{bps.rank()}.keras"),
            Noting(),
        ],
        epochs=4,
    )
    average = bps.allreduce(np.array(own))
    np.testing.assert_allclose(history["loss"], average, rtol=1e-6)
    assert not np.allclose(own, average)
    warm = [RATE / SIZE * ((step + 1) / STEPS * (SIZE - 1) / 2 + 1) for step in range(2 * STEPS)]
    np.testing.assert_allclose(rates, warm + [RATE / 4] * STEPS + [RATE / 8] * STEPS, rtol=1e-5)
    np.testing.assert_allclose(history["lr"][2:], [RATE / 4, RATE / 8], rtol=1e-6)
    assert [Path(f"best{rank}.keras").exists() for rank in range(SIZE)] == [True, False]
    loaded_models(model)


def loaded_models(model: Any) -> None:
    model.save(f"model{bps.rank()}.keras")
    plain = keras.models.load_model(f"model{bps.rank()}.keras")
    assert not is_distributed(plain.optimizer)
    model = bps.load_model(f"model{bps.rank()}.keras")
    assert isinstance(model.optimizer, keras.optimizers.SGD)
    assert int(model.optimizer.iterations) == 4 * STEPS
    sent = noted()
    fit(model, bps.rank(), BATCH, [])
    assert len(sent) == STEPS * 4
    weights = [bps.broadcast(weight, 0) for weight in model.get_weights()]
    assert all(np.array_equal(*pair) for pair in zip(weights, model.get_weights(), strict=True))


def values_sets_and_local_layers() -> None:
    rank = bps.rank()
    assert bps.allgather(np.full(rank + 1, rank)).tolist() == [0, 1, 1]
    assert bps.allgather(rank).tolist() == [0, 1]
    assert bps.reducescatter(np.arange(4.0), op=bps.Sum).tolist() == [[0, 2], [4, 6]][rank]

    def stepped(wrapped: Any, layer: Any) -> float:
        """The layer's one weight after a step from 0 on a gradient of 1 for rank 0 and 2 for rank 1."""
        gradient = keras.ops.convert_to_tensor(np.full((1, 1), rank + 1.0, np.float32))
        wrapped.apply([gradient], [layer.kernel])
        return float(layer.kernel.numpy().item())

    def layer() -> Any:
        made = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        made.build((None, 1))
        return made

    sgd, only = keras.optimizers.SGD, bps.add_process_set([1])
    alone = stepped(bps.DistributedOptimizer(sgd(1.0), process_set=only), layer())
    assert alone == -(rank + 1)
    shared, own = layer(), layer()
    partial = bps.PartialDistributedOptimizer(sgd(1.0), local_layers=own, op=bps.Sum)
    partial.build([shared.kernel, own.kernel])
    assert stepped(partial, shared) == -3
    assert stepped(partial, own) == -(rank + 1) / 2


def errors() -> None:
    unbuilt = keras.Sequential().variables
    expect(ValueError, "model.build(input_shape)", lambda: bps.broadcast_variables(unbuilt, 0))
    expect(RuntimeError, "broadcast_variables(model.variables, 0)", lambda: bps.broadcast_global_variables(0))
    local = keras.layers.Dense(1)
    expect(ValueError, "model.build(input_shape)", lambda: partial_optimizer(local))
    expect(TypeError, "keras.optimizers.Optimizer", lambda: bps.DistributedOptimizer("sgd"))
    expect(ValueError, "gradient_accumulation_steps", passes)
    distributed = bps.DistributedOptimizer(optimizer())
    expect(ValueError, "distributed already", lambda: bps.DistributedOptimizer(distributed))
    if BACKEND == "tensorflow":
        model = build(0)
        model.compile(bps.DistributedOptimizer(optimizer()), "mse", jit_compile=True)
        expect(RuntimeError, "jit_compile=False", lambda: fit(model, 0, BATCH, []))
    assert math.isclose(float(bps.push_pull(bps.rank(), average=False)), 1)
    assert bps.broadcast(np.array([bps.rank()]), 1).tolist() == [1]


def partial_optimizer(layer: Any) -> None:
    bps.PartialDistributedOptimizer(optimizer(), local_layers=layer)


def passes() -> None:
    bps.DistributedOptimizer(optimizer(), backward_passes_per_step=2)


def expect(kind: type[Exception], words: str, call: Any) -> None:
    try:
        call()
    except kind as error:
        if words not in str(error):
            raise
    else:
        raise AssertionError(f"no {kind.__name__}")


if __name__ == "__main__":
    bps.init()
    for work in (
        training_equals_one_process,
        callbacks_and_checkpoints,
        values_sets_and_local_layers,
        errors,
    ):
        work()
        print(work.__name__, flush=True)
    bps.shutdown()
    sys.exit(0)
