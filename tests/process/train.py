"""Trains a small model on a share of every batch and writes what the tests compare. Run by test_training."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

BATCH = 24  # divisible by every number of ranks that is tested
FEATURES = 20


def make_model(dtype: torch.dtype) -> nn.Module:
    """The same model on every rank and in the reference."""
    torch.manual_seed(7)
    return nn.Sequential(
        nn.Linear(FEATURES, 300), nn.Tanh(), nn.Linear(300, 60), nn.Tanh(), nn.Linear(60, 3)
    ).to(dtype)


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer that the ranks wrap and the reference uses as it is."""
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def make_batch(step: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Inputs [BATCH, FEATURES] and targets [BATCH, 3] of one step, all ranks' shares joined."""
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randn(BATCH, FEATURES, generator=generator, dtype=torch.float64)
    return inputs.to(dtype), torch.sin(inputs[:, :3] * 2).to(dtype)


def share(batch: tuple[Tensor, Tensor], rank: int, size: int) -> tuple[Tensor, Tensor]:
    """One rank's part of a batch."""
    return batch[0][rank::size], batch[1][rank::size]


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Mean squared error."""
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def values(model: nn.Module) -> list[str]:
    """All parameters, exactly."""
    return [float(value).hex() for parameter in model.parameters() for value in parameter.detach().flatten()]


def train_one_process(dtype: torch.dtype, steps: int) -> tuple[list[float], nn.Module]:
    """The reference: the joined batches in one process."""
    model = make_model(dtype)
    optimizer = make_optimizer(model)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model, make_batch(step, dtype))
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, model


def train_in_rank_order(dtype: torch.dtype, steps: int, size: int) -> nn.Module:
    """The bitwise reference: each rank's gradients, added in rank order and divided by their number."""
    model = make_model(dtype)
    optimizer = make_optimizer(model)
    parameters = list(model.parameters())
    for step in range(steps):
        batch = make_batch(step, dtype)
        shares: list[Sequence[Tensor]] = [
            torch.autograd.grad(loss_of(model, share(batch, rank, size)), parameters) for rank in range(size)
        ]
        for parameter, *gradients in zip(parameters, *shares, strict=True):
            total = gradients[0]
            for gradient in gradients[1:]:
                total = total + gradient
            parameter.grad = total / size
        optimizer.step()
    return model


def main() -> None:
    """Train as one rank of a job."""
    import byteps.torch as bps

    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--dtype", default="float64")
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--cross", action="store_true")
    parser.add_argument("--default-sizes", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dtype = getattr(torch, options.dtype)
    sizes: dict[str, Any] = {} if options.default_sizes else {"partition_bytes": 1 << 16}
    bps.init(deterministic=options.deterministic, **sizes)
    model = make_model(dtype)
    if bps.rank() > 0:  # broadcast_parameters must mend this
        nn.init.zeros_(next(model.parameters()))
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer: torch.optim.Optimizer
    if options.cross:
        optimizer = bps.CrossBarrier(model, make_optimizer(model), model.named_parameters())
    else:
        optimizer = bps.DistributedOptimizer(make_optimizer(model), named_parameters=model.named_parameters())
    losses = []
    for step in range(options.steps):
        optimizer.zero_grad()
        loss = loss_of(model, share(make_batch(step, dtype), bps.rank(), bps.size()))
        loss.backward()
        optimizer.step()
        losses.append(float(bps.push_pull(loss.detach(), name="loss")))
    result = {"rank": bps.rank(), "size": bps.size(), "losses": losses, "values": values(model)}
    (options.out / f"{bps.rank()}.json").write_text(json.dumps(result))
    bps.shutdown()


if __name__ == "__main__":
    main()
