"""The same training by ranks and by one process, with parameter groups and a learning rate schedule."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR

from byteps.session import Session

from . import zoo
from .conftest import Ranks
from .training import Loss, assert_same, crossing, parameters, train, train_alone

STEPS = 30
WAIT_S = 20.0

Wrap = Callable[..., Any]
"""``crossing`` or ``distributed``."""


def one_cycle(optimizer: Optimizer) -> LRScheduler:
    """Other learning rates in each step, and other momenta where the optimizer has some."""
    cycles = bool({"momentum", "betas"} & optimizer.defaults.keys())
    rates = [float(group["lr"]) * 2 for group in optimizer.param_groups]
    return OneCycleLR(optimizer, rates, total_steps=2 * STEPS, cycle_momentum=cycles)


def in_two_groups(model: nn.Module, make: Callable[..., Optimizer]) -> Optimizer:
    """An optimizer of matrices and of the rest, with learning rates of their own."""
    groups: dict[bool, list[Tensor]] = {False: [], True: []}
    for parameter in model.parameters():
        groups[parameter.ndim > 1].append(parameter)
    optimizer = make([{"params": groups[False]}])
    optimizer.add_param_group({"params": groups[True], "lr": optimizer.defaults["lr"] * 0.5})
    return optimizer


@dataclass(frozen=True)
class Recipe:
    """What is trained how.

    Attributes:
        model: A name of the zoo's.
        make: Makes the optimizer of parameter groups.
        schedule: Makes the learning rate schedule of the optimizer that the loop steps.
    """

    model: str
    make: Callable[..., Optimizer]
    schedule: Callable[[Optimizer], LRScheduler] = one_cycle


@dataclass(frozen=True)
class Outcome:
    """What training led to: losses by rank and step, parameters, and the optimizer's state."""

    losses: list[list[Tensor]]
    parameters: list[Tensor]
    state: dict[str, Any]


def alone(recipe: Recipe, size: int) -> Outcome:
    """Train with the plain optimizer in one process."""
    model = zoo.made(recipe.model)
    before = parameters(model)
    optimizer = in_two_groups(model, recipe.make)
    losses = train_alone(model, optimizer, size, range(STEPS), zoo.loss_of, recipe.schedule(optimizer))
    after = parameters(model)
    assert not any(map(torch.equal, before, after)), "each parameter is trained"
    return Outcome(losses, after, optimizer.state_dict())


def together(
    ranks: Ranks, recipe: Recipe, size: int, wrap: Wrap, loss: Loss = zoo.loss_of, **settings: Any
) -> list[Outcome]:
    """Train on ranks. Returns the outcomes by rank."""
    models = [zoo.made(recipe.model) for _ in range(size)]

    def work(session: Session) -> Outcome:
        model = models[session.rank]
        optimizer = wrap(model, session, lambda _: in_two_groups(model, recipe.make))
        losses = train(model, optimizer, session.rank, range(STEPS), loss, recipe.schedule(optimizer))
        state = optimizer.state_dict()  # before the parameters are read
        return Outcome([losses], parameters(model), state)

    return ranks(size, work, deterministic=True, **settings)


def assert_trains_as_alone(
    ranks: Ranks,
    recipe: Recipe,
    size: int,
    wrap: Wrap = crossing,
    loss: Loss = zoo.loss_of,
    **settings: Any,
) -> None:
    """All is bitwise as in one process: losses, parameters and the optimizer's state."""
    wanted = alone(recipe, size)
    for rank, found in enumerate(together(ranks, recipe, size, wrap, loss, **settings)):
        assert_same(found.losses[0], wanted.losses[rank])
        assert_same(found.parameters, wanted.parameters)
        assert_same_state(found.state, wanted.state)


def assert_same_state(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """State dictionaries are equal, bitwise."""
    assert found.keys() == wanted.keys()
    assert found["param_groups"] == wanted["param_groups"]
    torch.testing.assert_close(found["state"], wanted["state"], rtol=0, atol=0)


class Turns:
    """Ranks take turns in being ahead: the others begin their backward pass once its step() has returned.

    No gradient's sum can have arrived by then, so that all updates come after the leader's step().
    """

    def __init__(self, size: int, first: int, steps: int = STEPS) -> None:
        self._size = size
        self._gates = {step: threading.Event() for step in range(first, steps - 1)}

    def loss_of(self, model: nn.Module, rank: int, step: int) -> Tensor:
        """A rank's loss, when it is its turn to go on."""
        if self._leads(rank, step - 1):
            self._gates[step - 1].set()
        loss = zoo.loss_of(model, rank, step)
        if step in self._gates and not self._leads(rank, step):
            assert self._gates[step].wait(WAIT_S), f"in step {step} the leading rank waits for the others"
        return loss

    def _leads(self, rank: int, step: int) -> bool:
        return step in self._gates and rank == step % self._size
