"""CrossBarrier with compiled modules and functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from byteps.session import Session

from .conftest import Ranks
from .test_torch_cross_barrier import waiting
from .training import assert_same, crossing, distributed, parameters

# What is compiled does not depend on what sums, and torch stops compiling a function after some variants.
pytestmark = pytest.mark.parametrize("ranks", ["parameter-server"], indirect=True)


class Block(nn.Module):
    """A layer of an own class: the compiler leaves torch's containers alone."""

    def __init__(self, wide: int, narrow: int) -> None:
        super().__init__()
        self.layer = nn.Linear(wide, narrow)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layer(x).tanh()
        return result


def blocks() -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(Block(5, 4), Block(4, 4), Block(4, 3)).double()


COMPILE = {"backend": "eager", "fullgraph": True}


def compiled_in_place(network: Any) -> Any:
    for block in network:
        block.compile(**COMPILE)
    return network


def compiled_blocks(network: Any) -> Any:
    """The first one is not compiled."""
    others: list[Any] = [torch.compile(block, **COMPILE) for block in network[1:]]  # type: ignore[call-overload]
    return nn.Sequential(network[0], *others)


WAYS: dict[str, Callable[[Any], Any]] = {
    "blocks in place": compiled_in_place,
    "blocks": compiled_blocks,
    "whole": lambda network: torch.compile(network, **COMPILE),  # type: ignore[call-overload]
    "function": lambda network: torch.compile(lambda x: network(x), **COMPILE),  # type: ignore[call-overload]
}


# How many parameters wait until they are read; at a step all of those that no code reads without notice.
UNREAD = [
    ("blocks in place", "before wrapping", 6),
    ("blocks in place", "at the start", 6),
    ("blocks in place", "later", 6),
    ("blocks", "before wrapping", 6),
    ("blocks", "at the start", 2),
    ("blocks", "later", 2),
    ("whole", "before wrapping", 6),
    ("whole", "at the start", 0),
    ("function", "at the start", 0),
    ("function", "later", 0),
]


@pytest.mark.parametrize(("way", "when", "unread"), UNREAD)
def test_torch_compile(ranks: Ranks, way: str, when: str, unread: int) -> None:
    """Compiled modules wait when they are called; the step updates what other compiled code reads."""

    def work(session: Session, cross: bool) -> list[Tensor]:
        network: Any = blocks()
        run = WAYS[way](network) if cross and when == "before wrapping" else network
        inputs = torch.arange(20, dtype=torch.float64).reshape(4, 5)
        optimizer = (crossing if cross else distributed)(run, session)
        for step in range(7):
            if cross and step == {"at the start": 0, "later": 2}.get(when):
                run = WAYS[way](network)
            optimizer.zero_grad()
            run(inputs / (step + 1)).square().sum().backward()
            optimizer.step()
            if cross and step > 3:
                assert len(waiting(optimizer)) == unread
        return parameters(network)

    # One rank: the compiler is not for several threads.
    (plain,) = ranks(1, lambda session: work(session, False), force_distributed=True)
    (crossed,) = ranks(1, lambda session: work(session, True), force_distributed=True)
    assert_same(crossed, plain)
