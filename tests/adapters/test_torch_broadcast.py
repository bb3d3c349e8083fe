"""Broadcasts of tensors, parameters and optimizer state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import byteps.torch as bps
from byteps.session import Session
from byteps.torch.tensors import ELEMENT_TYPES

from .conftest import Ranks
from .training import assert_same, distributed, loss_of, model, parameters, train


@pytest.mark.parametrize("dtype", ELEMENT_TYPES, ids=str)
def test_every_dtype_from_every_root(ranks: Ranks, dtype: torch.dtype) -> None:
    def work(session: Session) -> None:
        for root in range(session.size):
            for shape in [(), (5,), (0,), (2, 3), (20_000,)]:
                tensor = torch.full(shape, session.rank).to(dtype)
                wanted = torch.full(shape, root).to(dtype)
                assert torch.equal(bps.broadcast(tensor, root, session=session), wanted)
                assert torch.equal(
                    bps.synchronize(bps.broadcast_async(tensor, root, session=session)), wanted
                )
                assert tensor.eq(torch.tensor(session.rank).to(dtype)).all()
                assert bps.broadcast_(tensor, root, session=session) is tensor
                assert torch.equal(tensor, wanted)

    ranks(3, work)


def test_values_that_no_arithmetic_would_keep(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        odd = torch.tensor([float("nan"), float("inf"), -0.0, 1e-45])
        tensor = odd.clone() if session.rank == 1 else torch.full((4,), float("nan"))
        bps.broadcast_(tensor, 1, session=session)
        assert torch.equal(tensor.view(torch.int32), odd.view(torch.int32))

    ranks(2, work)


def test_one_name_for_a_push_pull_and_a_broadcast_at_once(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        reduced = bps.push_pull_async(torch.tensor(1.0 + session.rank), name="t", session=session)
        copied = bps.broadcast_async_(torch.full((2, 2), 1.0 + session.rank), 0, "t", session=session)
        assert bps.synchronize(copied).eq(1.0).all()
        assert bps.synchronize(reduced).item() == 1.5

    ranks(2, work)


def test_a_view_that_is_not_contiguous(ranks: Ranks) -> None:
    def work(session: Session) -> Tensor:
        base = torch.full((3, 3), float(session.rank))
        bps.broadcast_(base[:, 1], 1, session=session)
        return base

    for rank, base in enumerate(ranks(2, work)):
        assert base.tolist() == [[float(rank), 1.0, float(rank)]] * 3


def test_gradients_flow_to_the_root(ranks: Ranks) -> None:
    def work(session: Session) -> list[float]:
        tensor = torch.ones(2, requires_grad=True)
        (bps.broadcast(tensor, 1, session=session) * (session.rank + 1)).sum().backward()
        assert tensor.grad is not None
        return tensor.grad.tolist()

    assert ranks(2, work) == [[0.0, 0.0], [1.5, 1.5]]


FORMS: dict[str, Callable[[nn.Module], Any]] = {
    "state dict": lambda network: network.state_dict(),
    "named generator": lambda network: network.named_parameters(),
    "generator": lambda network: network.parameters(),
    "list": lambda network: list(network.parameters()),
    "pairs": lambda network: list(network.named_parameters()),
    "named list": lambda network: [(f"p{i}", p) for i, p in enumerate(network.parameters())],
}


@pytest.mark.parametrize("form", FORMS)
def test_parameters_in_every_form(ranks: Ranks, form: str) -> None:
    def work(session: Session) -> list[Tensor]:
        network = model(seed=session.rank)
        bps.broadcast_parameters(FORMS[form](network), 1, session=session)
        return parameters(network)

    for found in ranks(2, work):
        assert_same(found, parameters(model(seed=1)))


def test_two_models_with_the_same_names_and_other_shapes(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        for width in (3, 5, 3):
            network = nn.Linear(width, width)
            bps.broadcast_parameters(network.state_dict(), root_rank=0, session=session)
            weights = bps.allgather_object(network.weight, session=session)
            assert torch.equal(weights[0], weights[1])

    ranks(2, work)


def test_buffers_of_a_state_dict_and_tied_weights(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        first, norm, last = nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3)
        last.weight = first.weight
        network = nn.Sequential(first, norm, last)
        with torch.no_grad():
            for tensor in network.state_dict().values():
                tensor.fill_(session.rank + 2)
        bps.broadcast_parameters(network.state_dict(), 0, session=session)
        assert all(tensor.eq(2).all() for tensor in network.state_dict().values())
        assert norm.num_batches_tracked is not None
        assert norm.num_batches_tracked.item() == 2

    ranks(2, work)


def test_nothing_to_broadcast(ranks: Ranks) -> None:
    ranks(2, lambda session: bps.broadcast_parameters({}, 0, session=session))


@pytest.mark.parametrize(
    ("params", "error"),
    [
        (3, ValueError),
        ("weights", ValueError),
        (torch.ones(2), ValueError),
        (nn.Linear(1, 1), ValueError),
        ({"a": 1}, TypeError),
        ([torch.ones(1), None], TypeError),
        ([("a", torch.ones(1)), ("a", torch.ones(1))], ValueError),
        ([("a", torch.ones(1, dtype=torch.complex64))], ValueError),
    ],
    ids=repr,
)
def test_parameters_of_a_wrong_kind(ranks: Ranks, params: Any, error: type[Exception]) -> None:
    def work(session: Session) -> None:
        with pytest.raises(error):
            bps.broadcast_parameters(params, 0, session=session)

    ranks(1, work)


@pytest.mark.parametrize("root", [-1, 2, 100])
def test_a_root_that_is_no_rank(ranks: Ranks, root: int) -> None:
    def work(session: Session) -> None:
        optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1)
        calls: list[Callable[[], object]] = [
            lambda: bps.broadcast(torch.ones(1), root, session=session),
            lambda: bps.broadcast_async_(torch.ones(1), root, "t", session=session),
            lambda: bps.broadcast_parameters([torch.ones(1)], root, session=session),
            lambda: bps.broadcast_object(1, root, session=session),
            lambda: bps.broadcast_optimizer_state(optimizer, root, session=session),
        ]
        for call in calls:
            with pytest.raises(ValueError, match=f"root_rank={root} is not a rank of this job"):
                call()

    ranks(2, work)


OPTIMIZERS: dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.8, 0.9), amsgrad=True),
    "AdamW tensor lr": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01), foreach=False),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.5),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.5),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.1),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
}


def same(one: Any, other: Any) -> bool:
    """Whether two state dicts hold the same types and values."""
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("wrapped", [False, True])
def test_optimizer_state_of_the_root_on_ranks_that_have_none(ranks: Ranks, kind: str, wrapped: bool) -> None:
    def work(session: Session) -> dict[str, Any]:
        network = model(dtype=torch.float32)
        optimizer: Any = OPTIMIZERS[kind](list(network.parameters()))
        if session.rank == 1:
            for step in range(3):
                optimizer.zero_grad()
                loss_of(network, 0, step).backward()
                optimizer.step()
            optimizer.param_groups[0]["weight_decay"] = 0.125
            optimizer.param_groups[0]["initial_lr"] = 0.5
        before, weights = optimizer.state_dict(), parameters(network)
        if wrapped:
            optimizer = bps.DistributedOptimizer(optimizer, session=session)
        bps.broadcast_optimizer_state(optimizer, root_rank=1, session=session)
        assert_same(parameters(network), weights)  # no hidden step has changed them
        if session.rank == 1:
            assert same(optimizer.state_dict(), before)
        state: dict[str, Any] = optimizer.state_dict()
        return state

    states = ranks(3, work)
    assert states[1]["param_groups"][0]["weight_decay"] == 0.125
    assert all(same(state, states[1]) for state in states)


def test_state_that_is_there_is_replaced_or_dropped(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        network = model()
        optimizer = torch.optim.Adam(network.parameters(), lr=0.01 * (session.rank + 1))
        optimizer.param_groups[0]["mine"] = session.rank
        if session.rank == 1:
            optimizer.param_groups[0]["only here"] = True
            loss_of(network, 0, 0).backward()
            optimizer.step()
        bps.broadcast_optimizer_state(optimizer, 0, network, session=session)
        assert not optimizer.state
        assert optimizer.param_groups[0]["lr"] == 0.01
        assert optimizer.param_groups[0]["mine"] == 0
        assert "only here" not in optimizer.param_groups[0]

    ranks(2, work)


def test_options_and_state_of_many_types(ranks: Ranks) -> None:
    options = {"none": None, "pair": (0.5, (1, None)), "list": [1, "two"], "flag": True, "set": {1, 2}}

    def work(session: Session) -> None:
        parameter = torch.zeros(2, requires_grad=True)
        optimizer = torch.optim.SGD([{"params": [parameter], "lr": 0.1}, {"params": [], "lr": 0.2}])
        if session.rank == 0:
            optimizer.param_groups[1].update(options)
            nested = {"step": 3, "factors": [torch.ones(2, 2), {"deep": torch.zeros(0)}], "name": None}
            optimizer.state[parameter] = nested
            optimizer.state["global"] = {"count": 2**70}  # type: ignore[index]
        bps.broadcast_optimizer_state(optimizer, 0, session=session)
        group = optimizer.param_groups[1]
        assert {key: group[key] for key in options} == options
        state = optimizer.state[parameter]
        assert state["step"] == 3
        assert state["factors"][0].tolist() == [[1.0, 1.0], [1.0, 1.0]]
        assert state["factors"][1]["deep"].shape == (0,)
        assert optimizer.state["global"] == {"count": 2**70}  # type: ignore[index]

    ranks(2, work)


def test_a_learning_rate_tensor_stays_the_same_object(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        rate = torch.tensor(0.1 * (session.rank + 1))
        optimizer = torch.optim.Adam([torch.zeros(2, requires_grad=True)], lr=rate, foreach=False)
        bps.broadcast_optimizer_state(optimizer, 1, session=session)
        assert optimizer.param_groups[0]["lr"] is rate
        assert rate.item() == pytest.approx(0.2)

    ranks(2, work)


def test_training_goes_on_alike_from_a_restored_root(ranks: Ranks) -> None:
    def work(session: Session) -> list[Tensor]:
        network = model(seed=session.rank)
        plain = torch.optim.Adam(network.parameters(), lr=0.01)
        if session.rank == 0:
            train(network, plain, 5, range(4))
        bps.broadcast_parameters(network.state_dict(), 0, session=session)
        bps.broadcast_optimizer_state(plain, 0, session=session)
        optimizer = distributed(network, session, lambda p: plain)
        train(network, optimizer, session.rank, range(4))
        return parameters(network)

    assert_same(*ranks(2, work))


def test_what_cannot_be_broadcast_says_so(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        parameter = torch.zeros(2, requires_grad=True)
        with pytest.raises(ValueError, match="LBFGS"):
            bps.broadcast_optimizer_state(torch.optim.LBFGS([parameter]), 0, session=session)
        with pytest.raises(TypeError, match="Optimizer"):
            bps.broadcast_optimizer_state("sgd", 0, session=session)  # type: ignore[arg-type]
        groups = [torch.zeros(2 + session.rank, requires_grad=True)]
        error = pytest.raises(ValueError, match="differ from those of rank 0")
        if session.rank == 0:
            bps.broadcast_optimizer_state(torch.optim.SGD(groups, lr=0.1), 0, session=session)
        else:
            with error:
                bps.broadcast_optimizer_state(torch.optim.SGD(groups, lr=0.1), 0, session=session)

    ranks(2, work)
