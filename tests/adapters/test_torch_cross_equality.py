"""Training across the barrier is, bitwise, training by one process with the plain optimizer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import (
    ASGD,
    SGD,
    Adadelta,
    Adafactor,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    NAdam,
    Optimizer,
    RAdam,
    RMSprop,
    Rprop,
)
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, LambdaLR, LRScheduler, StepLR

from byteps.session import Session

from . import zoo
from .conftest import Ranks
from .recipes import Recipe, Turns, assert_same_state, assert_trains_as_alone
from .training import assert_same, crossing, distributed, model, parameters, train, train_alone

OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "SGD": (SGD, {"lr": 0.1}),
    "SGD, momentum": (SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.01}),
    "SGD, nesterov": (SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    "Adam": (Adam, {"lr": 0.01, "weight_decay": 0.01}),
    "Adam, amsgrad": (Adam, {"lr": 0.01, "amsgrad": True, "maximize": True}),
    "AdamW": (AdamW, {"lr": 0.01}),
    "RMSprop": (RMSprop, {"lr": 0.01, "momentum": 0.5, "centered": True, "weight_decay": 0.01}),
    "Adagrad": (Adagrad, {"lr": 0.1, "lr_decay": 0.01, "weight_decay": 0.01}),
    "Adadelta": (Adadelta, {"weight_decay": 0.01}),
    "NAdam": (NAdam, {"lr": 0.01, "weight_decay": 0.01, "decoupled_weight_decay": True}),
    "RAdam": (RAdam, {"lr": 0.01, "weight_decay": 0.01}),
    "Adamax": (Adamax, {"lr": 0.01, "weight_decay": 0.01}),
    "ASGD": (ASGD, {"lr": 0.1, "t0": 10.0, "weight_decay": 0.01}),
    "Rprop": (Rprop, {"lr": 0.01}),
    "Adafactor": (Adafactor, {"lr": 0.02, "weight_decay": 0.01}),
}
FORMS = {"loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
FUSED = [name for name in OPTIMIZERS if name.startswith(("SGD", "Adam", "Adagrad")) and name != "Adamax"]
CASES = [(name, form) for name in OPTIMIZERS for form in FORMS if form != "fused" or name in FUSED]


SCHEDULES: dict[str, Callable[[Optimizer], LRScheduler]] = {
    "StepLR": lambda optimizer: StepLR(optimizer, step_size=4, gamma=0.7),
    "LambdaLR": lambda optimizer: LambdaLR(optimizer, lambda step: 1.0 / (1 + step)),
    "CosineAnnealingWarmRestarts": lambda optimizer: CosineAnnealingWarmRestarts(optimizer, 7),
}
SETTINGS: list[dict[str, Any]] = [
    {"credit_bytes": 1, "servers": 1},
    {"scheduling": "stop-and-wait", "servers": 3, "connections": 2},
]


def make(name: str, form: str = "foreach", **more: Any) -> Callable[..., Optimizer]:
    kind, options = OPTIMIZERS[name]
    return partial(kind, **{**options, **FORMS[form], **more})


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(("name", "form"), CASES)
def test_every_optimizer(ranks: Ranks, name: str, form: str, size: int) -> None:
    turns = Turns(size, first=1)
    assert_trains_as_alone(ranks, Recipe("everything", make(name, form)), size, loss=turns.loss_of)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("model", zoo.MODELS)
def test_every_model(ranks: Ranks, model: str, size: int) -> None:
    turns = Turns(size, first=1)
    assert_trains_as_alone(ranks, Recipe(model, make("AdamW")), size, loss=turns.loss_of)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("model", zoo.MODELS)
def test_every_model_in_whatever_order_gradients_arrive(ranks: Ranks, model: str, size: int) -> None:
    assert_trains_as_alone(ranks, Recipe(model, make("AdamW")), size)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule(ranks: Ranks, schedule: str) -> None:
    assert_trains_as_alone(ranks, Recipe("everything", make("AdamW"), SCHEDULES[schedule]), 2)


@pytest.mark.parametrize("name", ["SGD, nesterov", "AdamW"])
def test_a_schedule_changes_the_learning_rate_in_place(ranks: Ranks, name: str) -> None:
    rate = torch.tensor(0.01)
    recipe = Recipe("everything", lambda groups: make(name, "loop", lr=rate.clone())(groups))
    assert_trains_as_alone(ranks, recipe, 2)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_every_way_of_sending(ranks: Ranks, settings: dict[str, Any]) -> None:
    assert_trains_as_alone(ranks, Recipe("everything", make("AdamW")), 2, **settings)


@pytest.mark.parametrize(("model", "name"), [("everything", "Adafactor"), ("convolutions", "AdamW")])
def test_the_distributed_optimizer_computes_the_same(ranks: Ranks, model: str, name: str) -> None:
    assert_trains_as_alone(ranks, Recipe(model, make(name)), 3, distributed)


@pytest.mark.parametrize("name", ["SGD, momentum", "AdamW", "NAdam", "ASGD"])
def test_the_state_is_that_of_the_plain_optimizer(ranks: Ranks, name: str) -> None:
    """It is loaded by an optimizer that crosses and has updates to come, and read back by a plain one."""
    network = model(dtype=torch.float32)  # torch casts all of a loaded state to it
    optimizer = make(name)(network.parameters())
    train_alone(network, optimizer, 2, range(5))
    saved = copy.deepcopy((network.state_dict(), optimizer.state_dict()))

    def work(session: Session) -> tuple[nn.Module, dict[str, Any]]:
        mine = model(1, torch.float32)
        crosses = crossing(mine, session, make(name))
        train(mine, crosses, session.rank, range(100, 103))
        crosses.load_state_dict(copy.deepcopy(saved[1]))
        mine.load_state_dict(saved[0])
        train(mine, crosses, session.rank, range(5, 10))
        return mine, crosses.state_dict()

    found = ranks(2, work, deterministic=True)
    train_alone(network, optimizer, 2, range(5, 10))
    ends = []
    for mine, state in found:
        assert_same(parameters(mine), parameters(network))
        assert_same_state(state, optimizer.state_dict())
        copied = copy.deepcopy(mine)
        plain = make(name)(copied.parameters())
        plain.load_state_dict(state)
        train(copied, plain, 0, range(10, 12))
        ends.append(parameters(copied))
    train(network, optimizer, 0, range(10, 12))
    for end in ends:
        assert_same(end, parameters(network))
