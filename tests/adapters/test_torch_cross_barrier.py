"""CrossBarrier trains as the plain optimizer does, and its steps do not wait."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import byteps.torch as bps
from byteps.session import Session

from .conftest import Ranks
from .test_torch_equality import make_network, samples
from .training import (
    MakeOptimizer,
    added,
    assert_equal,
    assert_same,
    assert_trains_as_one,
    crossing,
    gradients,
    loss_of,
    model,
    parameters,
    reference,
    sgd,
    train,
    trained,
)

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
        optimizer = crossing(network, session, OPTIMIZERS[kind])
        for step in range(STEPS):
            optimizer.zero_grad()
            backward(network, session.rank, step)
            optimizer.step()
        return parameters(network)

    wanted = alone(OPTIMIZERS[kind], size)
    for found in ranks(size, work, deterministic=True):
        assert_same(found, wanted)


Check = Callable[[nn.Module, Any, Callable[[], None]], None]


def with_all_in_flight(ranks: Ranks, check: Check, steps: int = 2, make: MakeOptimizer = sgd) -> list[Any]:
    """Call ``check(network, optimizer, release)`` on rank 0 after a step whose gradients cannot have arrived.

    They can once ``release`` was called, at the latest at the end of the check. Returns the parameters of
    both ranks after ``steps`` steps; the first two come before the check.
    """
    released = threading.Event()

    def loop(session: Session, network: nn.Module, optimizer: Any) -> None:
        train(network, optimizer, session.rank, [0])
        if session.rank == 1:
            assert released.wait(20)
        train(network, optimizer, session.rank, [1])
        if session.rank == 0:
            try:
                check(network, optimizer, released.set)
            finally:
                released.set()
        train(network, optimizer, session.rank, range(2, steps))

    return trained(ranks, loop, wrap=crossing, make=make)


def waiting(optimizer: Any) -> list[str]:
    """The parameters whose updates wait."""
    return [slot.name for slot in optimizer._reducer.slots if slot.unread]


def raw(network: nn.Module) -> list[Tensor]:
    """The parameters as they are, read behind everybody's back."""
    return [
        p.detach().clone() for m in network.modules() for p in dict.values(m._parameters) if p is not None
    ]


NAMES = ["0.weight", "0.bias", "2.weight", "2.bias"]


def test_step_returns_before_anything_has_arrived(ranks: Ranks) -> None:
    def check(network: nn.Module, optimizer: Any, release: Callable[[], None]) -> None:
        assert waiting(optimizer) == NAMES
        assert_equal(raw(network), reference(2, 1))

    for found in with_all_in_flight(ranks, check, steps=4):
        assert_equal(found, reference(2, 4))


def copied(network: nn.Module) -> list[Tensor]:
    duplicate = copy.deepcopy(network)
    assert type(duplicate[0]._parameters) is dict  # type: ignore[index]
    return raw(duplicate)


def pickled(network: nn.Module) -> list[Tensor]:
    duplicate = pickle.loads(pickle.dumps(network))
    assert type(duplicate[0]._parameters) is dict
    return raw(duplicate)


READS: dict[str, Callable[[Any], list[Tensor]]] = {
    "attributes": lambda net: [net[0].weight, net[0].bias, net[2].weight, net[2].bias],
    "parameters": lambda net: list(net.parameters()),
    "named_parameters": lambda net: [parameter for _, parameter in net.named_parameters()],
    "state_dict": lambda net: list(net.state_dict().values()),
    "get_parameter": lambda net: [net.get_parameter(name) for name in NAMES],
    "dict": lambda net: [p for layer in (net[0], net[2]) for p in dict(layer._parameters).values()],
    "values": lambda net: [p for layer in (net[0], net[2]) for p in layer._parameters.values()],
    "get": lambda net: [
        layer._parameters.get(name) for layer in (net[0], net[2]) for name in ("weight", "bias")
    ],
    "deepcopy": copied,
    "pickle": pickled,
}


@pytest.mark.parametrize("kind", READS)
def test_whoever_reads_parameters_gets_them_updated(ranks: Ranks, kind: str) -> None:
    def check(network: nn.Module, optimizer: Any, release: Callable[[], None]) -> None:
        release()
        assert_equal([tensor.detach() for tensor in READS[kind](network)], reference(2, 2))
        assert waiting(optimizer) == []

    with_all_in_flight(ranks, check)


@pytest.mark.parametrize(
    "kind", ["state_dict", "flush", "deepcopy", "load_state_dict", "synchronize", "broadcast_optimizer_state"]
)
def test_what_waits_for_all_updates(ranks: Ranks, kind: str) -> None:
    def check(network: nn.Module, optimizer: Any, release: Callable[[], None]) -> None:
        release()
        if kind == "state_dict":
            plain = sgd(model().parameters())
            plain.load_state_dict(optimizer.state_dict())
        elif kind == "flush":
            optimizer.flush()
        elif kind == "deepcopy":
            assert type(copy.deepcopy(optimizer)) is torch.optim.SGD
        else:
            optimizer.load_state_dict(sgd(model().parameters()).state_dict())
        assert_equal(raw(network), reference(2, 2))

    if kind not in ("synchronize", "broadcast_optimizer_state"):
        with_all_in_flight(ranks, check)
        return

    def loop(session: Session, network: nn.Module, optimizer: Any) -> None:
        train(network, optimizer, session.rank, range(2))
        if kind == "synchronize":
            optimizer.synchronize()
        else:
            bps.broadcast_optimizer_state(optimizer, 0, session=session)
        assert_equal(raw(network), reference(2, 2))

    trained(ranks, loop, wrap=crossing)


def test_a_parameter_waits_only_for_its_own_gradient(ranks: Ranks) -> None:
    released = threading.Event()

    def held(gradient: Tensor) -> None:
        assert released.wait(20)

    def loop(session: Session, network: Any, optimizer: Any) -> None:
        train(network, optimizer, session.rank, [0])
        if session.rank == 1:  # sends the gradients of the second layer, then waits
            network[0].register_forward_hook(
                lambda module, inputs, output: output.register_hook(held) and None
            )
        train(network, optimizer, session.rank, [1])
        if session.rank == 0:
            assert_equal([network[2].weight, network[2].bias], reference(2, 2)[2:])
            assert waiting(optimizer) == NAMES[:2]
            released.set()
        assert_equal(parameters(network), reference(2, 2))

    trained(ranks, loop, wrap=crossing)


def test_hyper_parameters_are_those_at_the_step(ranks: Ranks) -> None:
    def check(network: nn.Module, optimizer: Any, release: Callable[[], None]) -> None:
        optimizer.param_groups[0]["lr"] = 1e6
        release()
        network(torch.ones(1, 5, dtype=torch.float64))
        assert_equal(parameters(network), reference(2, 2))

    with_all_in_flight(ranks, check)


@pytest.mark.parametrize("made_for", ["plain", "crossing"])
@pytest.mark.parametrize("tensor_lr", [False, True])
def test_learning_rate_schedule(ranks: Ranks, made_for: str, tensor_lr: bool) -> None:
    def make(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=torch.tensor(0.1) if tensor_lr else 0.1)

    def run(network: nn.Module, optimizer: Any, schedule: Any, rank: int) -> None:
        for step in range(5):
            train(network, optimizer, rank, [step])
            schedule.step()  # its warnings are errors in this suite

    def work(session: Session) -> list[Tensor]:
        network = model()
        plain = make(network.parameters())
        optimizer = bps.CrossBarrier(network, plain, session=session)
        schedule = torch.optim.lr_scheduler.StepLR(plain if made_for == "plain" else optimizer, 1, 0.5)
        run(network, optimizer, schedule, session.rank)
        return parameters(network)

    def together(session: Session) -> list[Tensor]:
        network = model()
        optimizer = bps.DistributedOptimizer(make(network.parameters()), session=session)
        run(network, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5), session.rank)
        return parameters(network)

    for found, wanted in zip(ranks(2, work), ranks(2, together), strict=True):
        assert_same(found, wanted)


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("when", ["before backward", "after step"])
@pytest.mark.parametrize("through_module", [True, False])
def test_zero_grad(ranks: Ranks, set_to_none: bool, when: str, through_module: bool) -> None:
    def loop(session: Session, network: nn.Module, optimizer: Any) -> None:
        zero_grad = (network if through_module else optimizer).zero_grad
        for step in range(4):
            if when == "before backward":
                zero_grad(set_to_none=set_to_none)
            loss_of(network, session.rank, step).backward()
            optimizer.step()
            if when == "after step":
                zero_grad(set_to_none=set_to_none)
        for parameter in network.parameters():
            gradient = parameter.grad
            if when == "before backward":
                assert gradient is not None
            else:
                assert gradient is None if set_to_none else gradient is not None and not gradient.any()

    assert_trains_as_one(ranks, loop, 4, wrap=crossing)


def test_gradients_are_the_reduced_ones_after_the_update(ranks: Ranks) -> None:
    def loop(session: Session, network: nn.Module, optimizer: Any) -> None:
        loss_of(network, session.rank, 0).backward()
        optimizer.step()
        optimizer.flush()
        one, other = (model() for _ in range(2))
        loss_of(one, 0, 0).backward()
        loss_of(other, 1, 0).backward()
        mean = [total / 2 for total in added(gradients(one), gradients(other))]
        assert_equal(gradients(network), mean)

    trained(ranks, loop, wrap=crossing)


def test_shutdown_finishes_updates(ranks: Ranks) -> None:
    def work(session: Session) -> list[Tensor]:
        network = model()
        train(network, crossing(network, session), session.rank, range(3))
        session.shutdown()
        return raw(network)

    for found in ranks(2, work):
        assert_equal(found, reference(2, 3))


def test_a_model_outlives_its_optimizer(ranks: Ranks) -> None:
    def work(session: Session) -> list[Tensor]:
        network = model()
        train(network, crossing(network, session), session.rank, range(3))
        return parameters(network)

    for found in ranks(2, work):
        assert_equal(found, reference(2, 3))


def test_one_worker_trains_as_without_byteps(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        network = model()
        optimizer = crossing(network, session)
        train(network, optimizer, 0, range(5))
        assert all(map(torch.equal, parameters(network), reference(1, 5)))
        assert type(network[0]._parameters) is dict
        assert not any(parameter._post_accumulate_grad_hooks for parameter in network.parameters())
        optimizer.flush()

    ranks(1, work)
