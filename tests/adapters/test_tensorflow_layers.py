"""Batch normalisation over all ranks, and parts of a model that ranks do not share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import byteps.tensorflow as bps
from byteps.session import Session

from .conftest import Ranks
from .drivers.interface import Array
from .drivers.tensorflow_threads import tf


@pytest.mark.parametrize("shape", [(5,), (4, 3, 5)])
def test_sync_batch_normalization_is_that_of_the_whole_batch(ranks: Ranks, shape: tuple[int, ...]) -> None:
    """Values far from zero; the ranks have batches of 1, 2 and 3."""
    random = np.random.default_rng(1)
    whole = (100 + random.standard_normal((6, *shape))).astype(np.float32)
    factors = random.standard_normal(whole.shape).astype(np.float32)
    bounds = [slice(0, 1), slice(1, 3), slice(3, 6)]

    def run(layer: Any, part: slice) -> list[Array]:
        @tf.function
        def call(batch: Any, factor: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(batch)
                output = layer(batch, training=True)
                loss = tf.reduce_sum(output * factor)
            return output, *tape.gradient(loss, [batch, layer.gamma.value])

        layer.build((None, *shape))
        found = [one.numpy() for one in call(tf.constant(whole[part]), tf.constant(factors[part]))]
        return [*found, layer.moving_mean.numpy(), layer.moving_variance.numpy()]

    wanted = run(tf.keras.layers.BatchNormalization(momentum=0.5), slice(0, 6))

    def train(session: Session) -> list[Array]:
        layer = bps.SyncBatchNormalization(momentum=0.5, session=session)
        assert isinstance(layer, tf.keras.layers.BatchNormalization)
        found = run(layer, bounds[session.rank])
        found[2] = bps.push_pull(found[2], average=False, session=session).numpy()
        return found

    for part, found in zip(bounds, ranks(3, train), strict=True):
        # Values near 100 keep four of float32's seven digits; one more is lost in the reference.
        close: dict[str, Any] = {"rtol": 1e-3, "atol": 1e-3}
        np.testing.assert_allclose(found[0], wanted[0][part], **close)
        np.testing.assert_allclose(found[1], wanted[1][part], **close)
        for one, other in zip(found[2:], wanted[2:], strict=True):
            np.testing.assert_allclose(one, other, **close)


def test_batch_normalization_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="fused"):
        bps.SyncBatchNormalization(fused=True)
    layer = bps.SyncBatchNormalization()
    layer.build((None, 4, 3))
    with pytest.raises(ValueError, match="mask"):
        layer._moments(tf.zeros([2, 4, 3]), tf.ones([2, 4], tf.bool))
    with pytest.raises(AttributeError, match="SyncBatchNorm"):
        _ = bps.SyncBatchNorm


@pytest.mark.parametrize("scaled", [True, False])
def test_gradients_that_stay_local(ranks: Ranks, scaled: bool) -> None:
    def train(session: Session) -> list[float]:
        layers = [tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros") for _ in range(2)]
        for layer in layers:
            layer.build((None, 1))
        shared, own = (layer.kernel for layer in layers)
        table = tf.Variable([[0.0], [0.0]])
        options: dict[str, Any] = {"op": bps.Sum, "session": session, "scale_local_gradients": scaled}
        with tf.GradientTape(persistent=True) as tape:
            loss = (shared[0, 0] + own[0, 0]) * (1.0 + session.rank) + tf.reduce_sum(tf.gather(table, [1]))
        sources = [shared, own, table]
        partial = bps.PartialDistributedGradientTape(tape, local_layers=[layers[1]], **options)
        partial.register_local_source(table)
        gradients = partial.gradient(loss, sources)
        optimizer = bps.DistributedOptimizer(tf.keras.optimizers.SGD(1.0), **options)
        optimizer.register_local_var(own)
        optimizer.apply(tape.gradient(loss, [shared, own]), [shared, own])
        assert isinstance(gradients[2], tf.IndexedSlices)
        values = [gradients[0], gradients[1], gradients[2].values, -shared.numpy(), -own.numpy()]
        return [float(np.asarray(value).item()) for value in values]

    part = 0.5 if scaled else 1.0
    assert ranks(2, train) == [[3, rank * part, part, 3, rank * part] for rank in (1, 2)]
