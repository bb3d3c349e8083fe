"""CrossBarrier with models that use their parameters in unusual ways, or not at all."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from byteps.session import Session

from .conftest import Ranks
from .training import (
    assert_equal,
    assert_same_as_distributed,
    crossing,
    model,
    parameters,
    reference,
    shared_model,
    train,
)


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


class Selective(nn.Module):
    """Keeps the results of matrix products and computes others again."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(5, 5), nn.Linear(5, 5)])
        self.leave = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = checkpoint(
                lambda y, layer=layer: layer(y).tanh(),
                x,
                use_reentrant=False,
                context_fn=lambda: create_selective_checkpoint_contexts([torch.ops.aten.addmm.default]),
            )
        result: Tensor = self.leave(x)
        return result


def selective() -> nn.Module:
    torch.manual_seed(5)
    return Selective().double()


def test_selective_checkpointing(ranks: Ranks) -> None:
    def loop(session: Session, network: nn.Module, optimizer: Any) -> None:
        train(network, optimizer, session.rank, range(5))

    assert_same_as_distributed(ranks, selective, loop)


class Names(TorchDispatchMode):
    """Lists the operations that run within it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


def test_updates_are_no_part_of_a_dispatch_mode_around_the_forward_pass(ranks: Ranks) -> None:
    def work(session: Session) -> list[str]:
        network = model()
        train(network, crossing(network, session), session.rank, range(2))
        names = Names()
        with names:
            network(torch.ones(1, 5, dtype=torch.float64))
        return names.seen

    for seen in ranks(2, work):
        assert "addmm" in seen
        assert not [name for name in seen if name.endswith("_")], "operations in place"


def test_several_threads_read_at_once(ranks: Ranks) -> None:
    def work(session: Session) -> list[list[Tensor]]:
        network = model()
        optimizer = crossing(network, session)
        found: list[list[Tensor]] = []
        for step in range(4):
            train(network, optimizer, session.rank, [step])
            found = [[] for _ in range(4)]
            threads = [
                threading.Thread(target=lambda out=out: out.extend(parameters(network))) for out in found
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        return found

    for found in ranks(2, work):
        for seen in found:
            assert_equal(seen, reference(2, 4))
