"""Small models, data that differs by rank, and the training of one process that ranks must equal."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import byteps.torch as bps
from byteps.session import Session
from byteps.torch.optimizer import SynchronizedOptimizer

MakeOptimizer = Callable[[Iterable[Tensor]], torch.optim.Optimizer]


def sgd(parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def model(seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """Four layers of parameters; the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    made = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).to(dtype)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=dtype))
    return made


class Shared(nn.Module):
    """One layer used twice, each time within an activation checkpoint: its gradients fire twice."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(5, 5)
        self.twice = nn.Linear(5, 5)
        self.leave = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for _ in range(2):
            x = checkpoint(self.twice, x, use_reentrant=True)
        result: Tensor = self.leave(x)
        return result


def shared_model() -> nn.Module:
    """The same each time. Not for several threads at once."""
    torch.manual_seed(0)
    return Shared().double()


def batch(rank: int, step: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Inputs [4, 5] and targets [4, 3]."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(4, 5, generator=generator, dtype=dtype), torch.randn(
        4, 3, generator=generator, dtype=dtype
    )


def loss_of(network: nn.Module, rank: int, step: int) -> Tensor:
    inputs, targets = batch(rank, step, next(network.parameters()).dtype)
    return nn.functional.mse_loss(network(inputs), targets)


def distributed(network: nn.Module, session: Session, make: MakeOptimizer = sgd, **options: Any) -> Any:
    """A wrapped optimizer over all of a model's parameters."""
    names = network.named_parameters()
    return bps.DistributedOptimizer(make(network.parameters()), names, session=session, **options)


def train(network: nn.Module, optimizer: SynchronizedOptimizer, rank: int, steps: Iterable[int]) -> None:
    """The usual loop."""
    for step in steps:
        optimizer.zero_grad()
        loss_of(network, rank, step).backward()
        optimizer.step()


def reference(
    size: int, steps: int, make: MakeOptimizer = sgd, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    """Parameters after one process has averaged the gradients of all ranks in the order of the ranks."""
    network = model(dtype=dtype)
    optimizer = make(network.parameters())
    for step in range(steps):
        sums = [torch.zeros_like(parameter) for parameter in network.parameters()]
        for rank in range(size):
            optimizer.zero_grad()
            loss_of(network, rank, step).backward()
            for total, gradient in zip(sums, gradients(network), strict=True):
                total += gradient
        for parameter, total in zip(network.parameters(), sums, strict=True):
            parameter.grad = total / size
        optimizer.step()
    return parameters(network)


def parameters(network: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in network.parameters()]


def gradients(network: nn.Module) -> list[Tensor]:
    """Copies of all gradients, which must exist."""
    found = [parameter.grad for parameter in network.parameters()]
    return [gradient.clone() for gradient in found if gradient is not None]


def mean_gradients(size: int, step: int, networks: Callable[[], nn.Module] = model) -> list[Tensor]:
    """What every rank's gradients should be after one backward pass on each."""
    by_rank = []
    for rank in range(size):
        network = networks()
        loss_of(network, rank, step).backward()
        by_rank.append(gradients(network))
    return [sum(parts, torch.zeros_like(parts[0])) / size for parts in zip(*by_rank, strict=True)]


def assert_equal(found: list[Tensor], wanted: list[Tensor]) -> None:
    """Equal up to the rounding of float64 sums in another order."""
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-14)
