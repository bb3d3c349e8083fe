"""CrossBarrier trains as DistributedOptimizer does; parameters wait where they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
import torch
from torch import Tensor, nn

import byteps.torch as bps
from byteps.session import Session

from .conftest import Ranks
from .test_torch_equality import make_network, samples
from .training import MakeOptimizer, added, assert_same, gradients, parameters

STEPS = 30

OPTIMIZERS: dict[str, MakeOptimizer] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-4),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
}


def backward(network: nn.Module, rank: int, step: int) -> None:
    images, labels = samples(rank, step, torch.float32)
    nn.functional.cross_entropy(network(images), labels).backward()


def alone(make: MakeOptimizer, size: int) -> list[Tensor]:
    """The parameters after one process has added up the ranks' gradients in their order."""
    network = make_network(torch.float32)
    optimizer = make(network.parameters())
    for step in range(STEPS):
        by_rank = []
        for rank in range(size):
            optimizer.zero_grad()
            backward(network, rank, step)
            by_rank.append(gradients(network))
        for parameter, total in zip(network.parameters(), added(*by_rank), strict=True):
            parameter.grad = total / size
        optimizer.step()
    return parameters(network)


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("size", [2, 3])
def test_bitwise_the_plain_optimizer(ranks: Ranks, kind: str, size: int) -> None:
    def work(session: Session) -> list[Tensor]:
        network = make_network(torch.float32)
        optimizer = bps.CrossBarrier(network, OPTIMIZERS[kind](network.parameters()), session=session)
        for step in range(STEPS):
            optimizer.zero_grad()
            backward(network, session.rank, step)
            optimizer.step()
        return parameters(network)

    wanted = alone(OPTIMIZERS[kind], size)
    for found in ranks(size, work, deterministic=True):
        assert_same(found, wanted)
