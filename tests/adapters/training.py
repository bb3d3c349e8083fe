"""Small models, data that differs by rank, and the training of one process that ranks must equal."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.checkpoint import checkpoint

import byteps.torch as bps
from byteps.session import Session

from .conftest import Ranks

MakeOptimizer = Callable[[Iterable[Tensor]], torch.optim.Optimizer]
Loss = Callable[[nn.Module, int, int], Tensor]
"""Of a model, on the samples of a rank in a step."""


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


def crossing(network: nn.Module, session: Session, make: MakeOptimizer = sgd, **options: Any) -> Any:
    """A wrapped optimizer over all of a model's parameters, whose steps do not wait."""
    return bps.CrossBarrier(network, make(network.parameters()), session=session, **options)


def train(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    rank: int,
    steps: Iterable[int],
    loss: Loss = loss_of,
    schedule: LRScheduler | None = None,
) -> list[Tensor]:
    """The usual loop. Returns the losses."""
    losses = []
    for step in steps:
        optimizer.zero_grad()
        losses.append(loss(network, rank, step))
        losses[-1].backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()
    return [one.detach() for one in losses]


def train_alone(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    size: int,
    steps: Iterable[int],
    loss: Loss = loss_of,
    schedule: LRScheduler | None = None,
) -> list[list[Tensor]]:
    """One process averages the gradients of all ranks in the order of the ranks. Returns losses by rank."""
    losses: list[list[Tensor]] = [[] for _ in range(size)]
    for step in steps:
        by_rank = []
        for rank in range(size):
            optimizer.zero_grad()
            losses[rank].append(loss(network, rank, step))
            losses[rank][-1].backward()
            by_rank.append(gradients(network))
        for parameter, *parts in zip(network.parameters(), *by_rank, strict=True):
            parameter.grad = reduce(torch.add, parts) / size
        optimizer.step()
        if schedule is not None:
            schedule.step()
    return [[one.detach() for one in of_rank] for of_rank in losses]


def reference(
    size: int, steps: int, make: MakeOptimizer = sgd, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    """Parameters after one process has averaged the gradients of all ranks in the order of the ranks."""
    network = model(dtype=dtype)
    train_alone(network, make(network.parameters()), size, range(steps))
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
    return [total / size for total in added(*by_rank)]


def assert_equal(found: list[Tensor], wanted: list[Tensor]) -> None:
    """Equal up to the rounding of float64 sums in another order."""
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-14)


Loop = Callable[[Session, nn.Module, Any], None]


def trained(
    ranks: Ranks, loop: Loop, size: int = 2, wrap: Callable[..., Any] = distributed, **options: Any
) -> list[list[Tensor]]:
    """Run ``loop(session, network, optimizer)`` on each rank.

    ``wrap`` makes the optimizer, and gets what else is given.

    Returns:
        The parameters afterwards, by rank.
    """

    def work(session: Session) -> list[Tensor]:
        network = model()
        loop(session, network, wrap(network, session, **options))
        return parameters(network)

    return ranks(size, work)


def assert_trains_as_one(ranks: Ranks, loop: Loop, steps: int, size: int = 2, **options: Any) -> None:
    """The loop ends where one process ends that averages the gradients of all ranks."""
    wanted = reference(size, steps, options.get("make", sgd))
    for found in trained(ranks, loop, size, **options):
        assert_equal(found, wanted)


def assert_same(found: list[Tensor], wanted: list[Tensor]) -> None:
    """Bitwise equal."""
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def mean(losses: Iterable[Tensor]) -> Tensor:
    """The loss of the joined batches of several ranks."""
    return torch.stack(list(losses)).mean()


def added(*gradients: list[Tensor]) -> list[Tensor]:
    """Sums of gradients, parameter by parameter."""
    return [torch.stack(parts).sum(0) for parts in zip(*gradients, strict=True)]


def in_flight(optimizer: Any) -> int:
    """How many gradients have been sent and not yet received."""
    return sum(slot.flight is not None for slot in optimizer._reducer._slots)


def assert_same_as_distributed(ranks: Ranks, networks: Callable[[], nn.Module], loop: Loop) -> None:
    """A loop ends with the same bits with ``CrossBarrier`` as with ``DistributedOptimizer``."""
    found = []
    for wrap in (distributed, crossing):
        made = [networks() for _ in range(2)]

        def work(session: Session, made: list[nn.Module] = made, wrap: Any = wrap) -> list[Tensor]:
            network = made[session.rank]
            loop(session, network, wrap(network, session))
            return parameters(network)

        found.append(ranks(2, work, deterministic=True))
    for plain, crossed in zip(*found, strict=True):
        assert_same(crossed, plain)
