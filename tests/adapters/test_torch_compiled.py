"""The warning about ``torch.compile`` of the whole model: where it helps, once, and nowhere else."""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import byteps.torch as bps
from byteps.session import Session
from byteps.torch.parallel import DistributedDataParallel

from .conftest import Ranks

WIDTH = 512
BATCH = 1024
"""So that hooks, which wait for other threads of Python on a busy machine, take no tenth of a pass."""
MOST_STEPS = 100
"""On a busy machine it takes more than five until three in a row are late."""
SILENT_STEPS = 12
Steps = Iterable[int]
Train = Callable[[nn.Module, Callable[..., Any], Session, Steps], None]


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
    network: nn.Module,
    compiled: Callable[..., Any],
    session: Session,
    steps: Steps,
    load_s: float = 0.0,
    passes: int = 1,
) -> None:
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(network.parameters(), lr=1e-6),
        network.named_parameters(),
        backward_passes_per_step=passes,
        session=session,
    )
    for _ in steps:
        optimizer.zero_grad()
        for _ in range(passes):
            step(compiled, load_s)
        optimizer.step()


def accumulating(network: nn.Module, compiled: Callable[..., Any], session: Session, steps: Steps) -> None:
    with_optimizer(network, compiled, session, steps, passes=2)


def crossing(network: nn.Module, compiled: Callable[..., Any], session: Session, steps: Steps) -> None:
    plain = torch.optim.SGD(network.parameters(), lr=1e-6)
    optimizer = bps.CrossBarrier(network, plain, network.named_parameters(), session=session)
    for _ in steps:
        optimizer.zero_grad()
        step(compiled)
        optimizer.step()


def with_parallel(network: nn.Module, compiled: Any, session: Session, steps: Steps) -> None:
    parallel = DistributedDataParallel(compiled, session=session)
    for _ in steps:
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


def slow_input(network: nn.Module, compiled: Callable[..., Any], session: Session, steps: Steps) -> None:
    with_optimizer(network, compiled, session, steps, load_s=0.15)


def found(caught: list[warnings.WarningMessage]) -> int:
    return sum("torch.compile has made one graph" in str(one.message) for one in caught)


def until_found(caught: list[warnings.WarningMessage], times: int) -> Iterator[int]:
    """Steps until the warning is there, and some more; without one to come, a fixed number."""
    if times:
        yield from itertools.takewhile(lambda _: not found(caught), range(MOST_STEPS))
    yield from range(SILENT_STEPS)


@pytest.mark.parametrize(
    ("make", "train", "times"),
    [
        (whole, with_optimizer, 1),
        (whole, with_parallel, 1),
        (whole, accumulating, 1),
        (whole, crossing, 1),
        (by_block, with_optimizer, 0),
        (by_block, with_parallel, 0),
        (by_block, slow_input, 0),
        (plain, slow_input, 0),
    ],
)
def test_whole_models_are_warned_about(
    ranks: Ranks, make: Callable[[nn.Sequential], Callable[..., Any]], train: Train, times: int
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")

        def work(session: Session) -> None:
            network = blocks()
            train(network, make(network), session, until_found(caught, times))

        ranks(1, work, servers=1, force_distributed=True)
    assert found(caught) == times
