"""The warning about ``torch.compile`` of the whole model: where it helps, once, and nowhere else."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import byteps.torch as bps
from byteps.session import Session
from byteps.torch.parallel import DistributedDataParallel

from .conftest import Ranks

WIDTH = 512
BATCH = 384
STEPS = 12
"""One that learns, three in a row that are late, one that looks at the graph; and more than that."""
Train = Callable[[nn.Module, Callable[..., Any], Session], None]


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.relu(self.linear(x))


def blocks() -> nn.Sequential:
    return nn.Sequential(*[Block() for _ in range(4)])


def step(model: Callable[..., Any], load_s: float = 0.0) -> None:
    """A forward and backward pass, after input that may take long to load."""
    time.sleep(load_s)  # workload
    model(torch.ones(BATCH, WIDTH)).square().mean().backward()


def with_optimizer(
    network: nn.Module, compiled: Callable[..., Any], session: Session, load_s: float = 0.0
) -> None:
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(network.parameters(), lr=1e-6), network.named_parameters(), session=session
    )
    for _ in range(STEPS):
        optimizer.zero_grad()
        step(compiled, load_s)
        optimizer.step()


def with_parallel(network: nn.Module, compiled: Any, session: Session) -> None:
    parallel = DistributedDataParallel(compiled, session=session)
    for _ in range(STEPS):
        network.zero_grad()
        step(parallel)


def whole(network: nn.Sequential) -> Callable[..., Any]:
    return torch.compile(network, backend="aot_eager")


def by_block(network: nn.Sequential) -> Callable[..., Any]:
    for block in network:
        block.compile(backend="aot_eager")
    return network


def plain(network: nn.Sequential) -> Callable[..., Any]:
    return network


def slow_input(network: nn.Module, compiled: Callable[..., Any], session: Session) -> None:
    with_optimizer(network, compiled, session, load_s=0.15)


@contextmanager
def counted() -> Iterator[list[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found: list[warnings.WarningMessage] = []
        yield found
        found += [one for one in caught if "torch.compile has made one graph" in str(one.message)]


@pytest.mark.parametrize(
    ("make", "train", "times"),
    [
        (whole, with_optimizer, 1),
        (whole, with_parallel, 1),
        (by_block, with_optimizer, 0),
        (by_block, with_parallel, 0),
        (by_block, slow_input, 0),
        (plain, slow_input, 0),
    ],
)
def test_whole_models_are_warned_about(
    ranks: Ranks, make: Callable[[nn.Sequential], Callable[..., Any]], train: Train, times: int
) -> None:
    def work(session: Session) -> None:
        network = blocks()
        train(network, make(network), session)

    with counted() as found:
        ranks(1, work, servers=1, force_distributed=True)
    assert len(found) == times
