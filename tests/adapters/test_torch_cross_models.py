"""CrossBarrier with models that use their parameters in unusual ways, or not at all."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from byteps.session import Session

from .conftest import Ranks
from .training import assert_same_as_distributed, model, shared_model, train


class Partly(nn.Module):
    """Uses one of its branches in each step, on all ranks the same or not, and one part never."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(5, 5)
        self.branches = nn.ModuleList([nn.Linear(5, 3), nn.Linear(5, 3)])
        self.never = nn.Linear(2, 2)
        self.branch = 0

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.branches[self.branch](self.enter(x))
        return result


def partly() -> nn.Module:
    torch.manual_seed(1)
    return Partly().double()


@pytest.mark.parametrize("same", [True, False])
def test_parameters_that_are_not_used_in_each_step(ranks: Ranks, same: bool) -> None:
    def loop(session: Session, network: Any, optimizer: Any) -> None:
        for step in range(6):
            network.branch = (step // 2 + (0 if same else session.rank)) % 2
            train(network, optimizer, session.rank, [step])
        assert network.never.weight.grad is None

    assert_same_as_distributed(ranks, partly, loop)


def test_layers_that_are_frozen_and_thawed(ranks: Ranks) -> None:
    def loop(session: Session, network: Any, optimizer: Any) -> None:
        for step in range(8):
            network[0].weight.requires_grad_(step % 4 > 1)
            train(network, optimizer, session.rank, [step])

    assert_same_as_distributed(ranks, model, loop)


def test_shared_weights_under_activation_checkpointing(ranks: Ranks) -> None:
    def loop(session: Session, network: nn.Module, optimizer: Any) -> None:
        train(network, optimizer, session.rank, range(5))

    assert_same_as_distributed(ranks, shared_model, loop)


class Recurrent(nn.Module):
    """Reads weights in ways that no module's pre-hook sees."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(5, 4, batch_first=True)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.scales = nn.ParameterList([torch.full((4,), 0.5), torch.ones(4)])
        self.head = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))
        self.table = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden, _ = self.lstm(x.unsqueeze(1))
        hidden = self.attention(hidden, hidden, hidden)[0].squeeze(1)
        hidden = hidden * self.scales[0] + self.scales[1]
        return torch.add(self.head(hidden), nn.functional.linear(hidden, self.table.weight))


def recurrent() -> nn.Module:
    torch.manual_seed(2)
    return Recurrent().double()


def test_weights_that_are_read_in_unusual_ways(ranks: Ranks) -> None:
    def loop(session: Session, network: nn.Module, optimizer: Any) -> None:
        train(network, optimizer, session.rank, range(6))

    assert_same_as_distributed(ranks, recurrent, loop)
