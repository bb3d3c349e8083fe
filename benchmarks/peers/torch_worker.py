"""A worker of a torch system: ``python -m benchmarks.peers.torch_worker KIND RANK SIZE``.

Kinds: ``byteps`` (push_pull), ``gloo`` (all_reduce), ``horovod`` (allreduce), and one training step under
``ddp`` or ``byteps-ddp``. Each checks its first result.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed

from benchmarks.peers.answers import time_exchanges

LAYERS = 32
Exchange = Callable[[], object]
Prepare = Callable[[int], Exchange]


def sums(reduce: Callable[[torch.Tensor, str], object], rank: int, size: int) -> Prepare:
    """Exchanges that sum a tensor in place."""

    def prepare(nbytes: int) -> Exchange:
        tensor = torch.full((nbytes // 4,), float(rank + 1))
        name = f"{nbytes} bytes"
        reduce(tensor, name)
        if not bool((tensor == size * (size + 1) / 2).all()):
            raise RuntimeError(f"rank {rank}: the sum of {name} is wrong")
        tensor.zero_()  # so that repeated sums stay finite
        return lambda: reduce(tensor, name)

    return prepare


class Layers(torch.nn.Module):
    """Layers that cost next to no computing, with parameters of a given size in bytes."""

    def __init__(self, nbytes: int) -> None:
        super().__init__()
        layer = nbytes // 4 // LAYERS
        self.weights = torch.nn.ParameterList(torch.zeros(layer) for _ in range(LAYERS))

    def forward(self, factor: float) -> torch.Tensor:
        """The factor is each element's gradient."""
        return torch.stack([weight.sum() * factor for weight in self.weights]).sum()


def steps(wrap: Callable[[torch.nn.Module], torch.nn.Module], rank: int, size: int) -> Prepare:
    """Exchanges that are a forward and a backward pass of a wrapped model."""

    def prepare(nbytes: int) -> Exchange:
        layers = Layers(nbytes)
        model = wrap(layers)

        def step() -> None:
            model.zero_grad(set_to_none=True)
            model(float(rank)).backward()

        step()
        if not all(bool((weight.grad == (size - 1) / 2).all()) for weight in layers.weights):
            raise RuntimeError(f"rank {rank}: the averages are wrong")
        return step

    return prepare


def run_byteps(rank: int, size: int, training: bool) -> None:
    """``byteps`` and ``byteps-ddp``: rank and size come from the environment."""
    bps: Any = importlib.import_module("byteps.torch")
    bps.init(hierarchical="off")

    def reduce(tensor: torch.Tensor, name: str) -> object:
        return bps.push_pull_inplace(tensor, average=False, name=name)

    wrapper: Any = importlib.import_module("byteps.torch.parallel").DistributedDataParallel
    time_exchanges(steps(wrapper, rank, size) if training else sums(reduce, rank, size))
    bps.shutdown()


def run_gloo(rank: int, size: int, training: bool) -> None:
    """``gloo`` and ``ddp``: the meeting point comes from the environment."""
    torch.distributed.init_process_group("gloo", init_method=sys.argv[4], rank=rank, world_size=size)

    def reduce(tensor: torch.Tensor, name: str) -> object:
        return torch.distributed.all_reduce(tensor)

    wrapper = torch.nn.parallel.DistributedDataParallel
    time_exchanges(steps(wrapper, rank, size) if training else sums(reduce, rank, size))
    torch.distributed.destroy_process_group()


def run_horovod(rank: int, size: int) -> None:
    """``horovod``: rank, size and the meeting point come from the environment."""
    hvd: Any = importlib.import_module("horovod.torch")
    hvd.init()
    time_exchanges(sums(lambda tensor, name: hvd.allreduce_(tensor, op=hvd.Sum, name=name), rank, size))
    hvd.shutdown()


KINDS: Mapping[str, Callable[[int, int], None]] = {
    "byteps": lambda rank, size: run_byteps(rank, size, training=False),
    "byteps-ddp": lambda rank, size: run_byteps(rank, size, training=True),
    "gloo": lambda rank, size: run_gloo(rank, size, training=False),
    "ddp": lambda rank, size: run_gloo(rank, size, training=True),
    "horovod": run_horovod,
}


if __name__ == "__main__":
    KINDS[sys.argv[1]](int(sys.argv[2]), int(sys.argv[3]))
