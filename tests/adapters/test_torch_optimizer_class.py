"""The wrapped optimizer is still the optimizer it was: class, attributes, schedules, closures, copies."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import byteps.torch as bps
from byteps.errors import NotInitialized
from byteps.session import Session

from .conftest import Ranks
from .training import (
    assert_equal,
    assert_trains_as_one,
    distributed,
    loss_of,
    mean_gradients,
    model,
    parameters,
    sgd,
    train,
)


def test_the_wrapper_is_the_optimizer_it_wraps(ranks: Ranks) -> None:
    class Custom(torch.optim.SGD):
        """Cannot be rebuilt from its parameter groups."""

        def __init__(self, base: torch.optim.Optimizer, mark: str) -> None:
            super().__init__(base.param_groups, lr=0.5)
            self.mark = mark

    def work(session: Session) -> None:
        network = model()
        plain = Custom(sgd(network.parameters()), "kept")
        wrapped: Any = bps.DistributedOptimizer(plain, network.named_parameters(), session=session)
        assert issubclass(type(wrapped), Custom)
        assert type(wrapped).__name__ == "Custom"
        assert wrapped.mark == "kept"
        assert wrapped.state is plain.state
        assert wrapped.param_groups is plain.param_groups
        assert wrapped.defaults is plain.defaults
        assert repr(wrapped) == repr(plain)
        train(network, wrapped, session.rank, range(2))
        assert wrapped.state_dict().keys() == {"state", "param_groups"}
        other = Custom(sgd(model().parameters()), "other")
        other.load_state_dict(wrapped.state_dict())
        wrapped.load_state_dict(other.state_dict())
        assert plain.param_groups is wrapped.param_groups
        train(network, wrapped, session.rank, range(2, 4))

    ranks(2, work)


def test_copies_and_pickles_are_plain_optimizers(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        network = model()
        wrapped = distributed(network, session)
        train(network, wrapped, session.rank, range(2))
        saved = io.BytesIO()
        torch.save(wrapped, saved)
        saved.seek(0)
        for plain in (copy.deepcopy(wrapped), torch.load(saved, weights_only=False)):
            assert type(plain) is torch.optim.SGD
            assert plain.state_dict()["param_groups"] == wrapped.state_dict()["param_groups"]

    ranks(2, work)


SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "StepLR": lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5),
    "OneCycleLR": lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.3, total_steps=20),
    "Sequential": lambda optimizer: torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.ConstantLR(optimizer, 0.5, 2),
            torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
        ],
        [2],
    ),
}


@pytest.mark.parametrize("kind", SCHEDULES)
@pytest.mark.parametrize("made_for", ["plain, before", "plain, after", "wrapper"])
def test_learning_rate_schedules_step_without_warnings(ranks: Ranks, kind: str, made_for: str) -> None:
    steps = 5

    def run(network: nn.Module, schedule: Any, step: Callable[[int], object]) -> list[Tensor]:
        for number in range(steps):
            step(number)
            schedule.step()  # its warnings are errors in this suite
        return parameters(network)

    def work(session: Session) -> list[Tensor]:
        network = model()
        plain = sgd(network.parameters())
        before = SCHEDULES[kind](plain) if made_for == "plain, before" else None
        wrapped = distributed(network, session, lambda p: plain)
        schedule = before or SCHEDULES[kind](plain if made_for == "plain, after" else wrapped)
        return run(network, schedule, lambda number: train(network, wrapped, session.rank, [number]))

    def alone() -> list[Tensor]:
        network = model()
        optimizer = sgd(network.parameters())
        schedule = SCHEDULES[kind](optimizer)

        def step(number: int) -> None:
            for parameter, gradient in zip(network.parameters(), mean_of_both(network, number), strict=True):
                parameter.grad = gradient
            optimizer.step()

        return run(network, schedule, step)

    for found in ranks(2, work):
        assert_equal(found, alone())


def mean_of_both(network: nn.Module, step: int) -> list[Tensor]:
    return mean_gradients(2, step, lambda: copy.deepcopy(network))


def test_step_hooks_and_a_replaced_step_are_called_once(ranks: Ranks) -> None:
    def work(session: Session) -> list[str]:
        calls: list[str] = []
        network = model()
        plain: Any = sgd(network.parameters())
        plain.register_step_pre_hook(lambda *arguments: calls.append("before"))
        wrapped: Any = distributed(network, session, lambda p: plain)
        wrapped.register_step_post_hook(lambda *arguments: calls.append("after"))
        inner = wrapped.step

        def replaced(*args: Any) -> None:
            calls.append("replaced")
            inner(*args)

        wrapped.step = replaced
        train(network, wrapped, session.rank, [0])
        del wrapped.step
        train(network, wrapped, session.rank, [1])
        return calls

    assert ranks(2, work) == [["replaced", "before", "after", "before", "after"]] * 2


def test_a_closure_is_evaluated_and_its_gradients_reduced_before_the_update(ranks: Ranks) -> None:
    def loop(session: Session, network: nn.Module, optimizer: Any) -> None:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = loss_of(network, session.rank, next(steps))
            loss.backward()
            return loss

        steps = iter(range(4))
        losses = [optimizer.step(closure) for _ in range(4)]
        assert all(isinstance(loss, Tensor) for loss in losses)

    assert_trains_as_one(ranks, loop, 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"named_parameters": [1, 2]}, "tuples"),
        ({"named_parameters": ["ab", "cd"]}, "tuples"),
        ({"named_parameters": {"a": 1}}, "tuples"),
        ({"named_parameters": [("same", None), ("same", None)]}, "duplicates: same"),
        ({"named_parameters": []}, "not named: parameter 0 of group 0"),
        ({"backward_passes_per_step": 0}, "positive integer"),
        ({"backward_passes_per_step": 1.5}, "positive integer"),
        ({"op": bps.Max}, "Average or Sum"),
        ({"op": bps.Sum, "gradient_predivide_factor": 2.0}, "predivide"),
        ({"gradient_predivide_factor": 0.0}, "positive"),
        ({"process_set": object()}, "process_set"),
    ],
    ids=repr,
)
def test_wrong_arguments_are_refused_even_before_init(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bps.DistributedOptimizer(sgd(model().parameters()), **options)


def test_a_parameter_named_twice_is_refused() -> None:
    network = model()
    names = [*network.named_parameters(), ("again", network[0].weight)]
    with pytest.raises(ValueError, match=r"'0\.weight' and as 'again'"):
        bps.DistributedOptimizer(sgd(network.parameters()), names)  # type: ignore[arg-type]


def test_optimizers_that_cannot_be_wrapped() -> None:
    with pytest.raises(ValueError, match=r"LBFGS.*line search"):
        bps.DistributedOptimizer(torch.optim.LBFGS(model().parameters()))
    with pytest.raises(TypeError, match="Optimizer"):
        bps.DistributedOptimizer(model())  # type: ignore[arg-type]
    with pytest.raises(NotInitialized):
        bps.DistributedOptimizer(sgd(model().parameters()))


def test_refusals_that_need_a_session(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        network = model()
        with pytest.warns(UserWarning, match="groups= have no effect"):
            optimizer = distributed(network, session, num_groups=2)
        with pytest.raises(ValueError, match="distributed already"):
            bps.DistributedOptimizer(optimizer, session=session)
        with pytest.raises(ValueError, match="positive integer"):
            optimizer.set_backward_passes_per_step(0)

    ranks(1, work)
