"""Training on several ranks is training on one: 50 steps of a small network of convolutions."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
import torch
from torch import Tensor, nn

import byteps.torch as bps
from byteps.session import Session
from byteps.torch.parallel import DistributedDataParallel

from .conftest import Ranks
from .training import assert_same, parameters, train_alone

STEPS = 50
SAMPLES = 3


def make_network(dtype: torch.dtype) -> nn.Sequential:
    """The same weights at each call. The largest tensor takes more than one cell in double precision."""
    network = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 40)
    )
    network.append(nn.Tanh()).append(nn.Linear(40, 10))
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return network.to(dtype)


def samples(rank: int, step: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(97 * step + rank)
    images = torch.randn(SAMPLES, 1, 10, 10, generator=generator)
    return images.to(dtype), torch.randint(10, (SAMPLES,), generator=generator)


def optimizer_for(network: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)


def loss_of(network: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    return nn.functional.cross_entropy(network(images), labels)


def with_optimizer(session: Session, dtype: torch.dtype) -> list[Tensor]:
    network = make_network(dtype)
    optimizer = bps.DistributedOptimizer(optimizer_for(network), network.named_parameters(), session=session)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(network, [samples(session.rank, step, dtype)]).backward()
        optimizer.step()
    return parameters(network)


def with_module(session: Session, dtype: torch.dtype) -> list[Tensor]:
    network = make_network(dtype)
    module = DistributedDataParallel(network, session=session)
    optimizer = optimizer_for(network)
    for step in range(STEPS):
        module.zero_grad()
        loss_of(module, [samples(session.rank, step, dtype)]).backward()
        optimizer.step()
    return parameters(network)


WAYS: dict[str, Callable[[Session, torch.dtype], list[Tensor]]] = {
    "DistributedOptimizer": with_optimizer,
    "DistributedDataParallel": with_module,
}


@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("way", WAYS)
def test_double_precision_equals_one_process_on_the_joined_batches(
    ranks: Ranks, way: str, workers: int, servers: int
) -> None:
    network = make_network(torch.float64)
    optimizer = optimizer_for(network)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(network, [samples(rank, step, torch.float64) for rank in range(workers)]).backward()
        optimizer.step()
    for found in ranks(workers, lambda session: WAYS[way](session, torch.float64), servers):
        for one, other in zip(found, parameters(network), strict=True):
            assert (one - other).norm() <= 1e-12 * other.norm()


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("way", WAYS)
def test_deterministic_single_precision_is_bitwise_that_of_one_process(
    ranks: Ranks, way: str, workers: int
) -> None:
    def loss(module: nn.Module, rank: int, step: int) -> Tensor:
        return loss_of(module, [samples(rank, step, torch.float32)])

    network = make_network(torch.float32)
    train_alone(network, optimizer_for(network), workers, range(STEPS), loss)
    for found in ranks(workers, lambda session: WAYS[way](session, torch.float32), deterministic=True):
        assert_same(found, parameters(network))
