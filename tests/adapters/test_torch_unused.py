"""Parameters that some ranks, or some steps, do not use."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import byteps.torch as bps
from byteps.session import Session

from .conftest import Ranks
from .training import assert_same, distributed, in_flight, loss_of, trained


class Branches(nn.Module):
    """Layers of which each call uses one."""

    def __init__(self, count: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2, 1, bias=False) for _ in range(count))

    def forward(self, x: Tensor, branch: int) -> Tensor:
        result: Tensor = self.layers[branch](x)
        return result

    def grads(self) -> list[list[float] | None]:
        weights = list(self.parameters())
        return [None if w.grad is None else w.grad.flatten().tolist() for w in weights]


def test_ranks_that_use_different_parameters(ranks: Ranks) -> None:
    plans = [(0, 1), (0, 1), (0, 0), (1, 2), (0, 1), (2, 2)]

    def work(session: Session) -> list[list[list[float] | None]]:
        network = Branches(4)
        optimizer = distributed(network, session)
        found = []
        for plan in plans:
            optimizer.zero_grad()
            network(torch.ones(2), plan[session.rank]).sum().backward()
            optimizer.step()
            found.append(network.grads())
        return found

    def wanted(plan: tuple[int, int]) -> list[list[float] | None]:
        # One that no rank used stays without a gradient; one that some rank used gets the average.
        return [[plan.count(branch) / 2] * 2 if branch in plan else None for branch in range(4)]

    for found in ranks(2, work):
        assert found == [wanted(plan) for plan in plans]


def test_a_parameter_that_all_ranks_used_at_first_gets_zeros_where_it_is_unused_later(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        network = Branches(2)
        optimizer = distributed(network, session)
        wanted = {
            "both": [[1.0, 1.0]] * 2,
            "the first": [[1.0, 1.0], [0.0, 0.0]],
            "one each": [[0.5, 0.5]] * 2,
        }
        for used, expected in wanted.items():
            branches = {"both": [0, 1], "the first": [0], "one each": [session.rank]}[used]
            optimizer.zero_grad()
            torch.cat([network(torch.ones(2), branch) for branch in branches]).sum().backward()
            optimizer.step()
            assert network.grads() == expected

    ranks(2, work)


def test_a_rank_without_any_gradient(ranks: Ranks) -> None:
    def loop(session: Session, network: nn.Module, optimizer: Any) -> None:
        for step in range(3):
            optimizer.zero_grad()
            if session.rank == 0:
                loss_of(network, 0, step).backward()
            optimizer.step()

    assert_same(*trained(ranks, loop))


def test_parameters_that_are_frozen_and_unfrozen(ranks: Ranks) -> None:
    def work(session: Session) -> list[list[float] | None]:
        network = Branches(2)
        network.layers[1].requires_grad_(False)
        optimizer = distributed(network, session)
        sent = []
        for step in range(6):
            network.layers[1].requires_grad_(step >= 2)
            network.layers[0].requires_grad_(step < 4)
            optimizer.zero_grad()
            both = network(torch.ones(2), 0) + network(torch.full((2,), 1.0 + session.rank), 1)
            both.sum().backward()
            sent.append(in_flight(optimizer))
            optimizer.step()
            assert optimizer._reducer._usage._doubtful == [], "frozen parameters need no questions"
        assert sent == [0, 1, 1, 1, 1, 1]
        return network.grads()

    assert ranks(2, work) == [[None, [1.5, 1.5]]] * 2


def test_parameters_added_to_the_optimizer_later(ranks: Ranks) -> None:
    def work(session: Session) -> list[list[float] | None]:
        network = Branches(3)
        plain = torch.optim.SGD(network.layers[0].parameters(), lr=0.1)
        optimizer = bps.DistributedOptimizer(plain, network.named_parameters(), session=session)
        for step in range(4):
            if step == 1:
                later = [*network.layers[1].parameters(), *network.layers[2].parameters()]
                optimizer.add_param_group({"params": later})
            optimizer.zero_grad()
            both = network(torch.ones(2), 0) + network(torch.full((2,), 1.0 + session.rank), 1)
            both.sum().backward()
            optimizer.step()
        return network.grads()

    assert ranks(2, work) == [[[1.0, 1.0], [1.5, 1.5], None]] * 2
