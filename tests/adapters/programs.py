"""Models of random blocks, and random programs of what is done with them on all ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (its usual name)
from torch.optim import SGD, AdamW, NAdam, Optimizer
from torch.utils.checkpoint import checkpoint

from . import zoo

STEPS = 10

Use = tuple[int, str]
"""A block of the model and how it is used."""

BLOCKS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(zoo.WIDTH, zoo.WIDTH),
    "norm": lambda: nn.LayerNorm(zoo.WIDTH),
    "attention": zoo.Attention,
    "lists": zoo.Lists,
    "weight_norm": zoo.Normed,
    "recurrent": zoo.Recurrent,
}
OPTIMIZERS: list[Callable[..., Optimizer]] = [
    partial(SGD, lr=0.05, momentum=0.9, weight_decay=0.01),
    partial(AdamW, lr=0.01),
    partial(NAdam, lr=0.01, foreach=False),
]


@dataclass(frozen=True)
class Round:
    """One step of all ranks.

    Attributes:
        uses: What each rank's forward passes use besides the core, by rank and pass.
        frozen: Blocks that require no gradient from now on; None if that stays as it is.
        zeroing: Who drops the gradients and what it is told, before the forward pass or after the first.
        zeroes_late: Which of these.
        steps: Whether the gradients are used.
        early_look: What is read between the backward passes and the step.
        look: What is read after the step.
        decay: The learning rate is multiplied by this after the step.
    """

    uses: tuple[tuple[tuple[Use, ...], ...], ...]
    frozen: frozenset[int] | None
    zeroing: tuple[str, dict[str, bool]]
    zeroes_late: bool
    steps: bool
    early_look: str
    look: str
    decay: float


@dataclass(frozen=True)
class Program:
    """A model and its life.

    Attributes:
        kinds: The model's blocks.
        ties: Pairs of blocks of which the first has the second's weight.
        core: What each forward pass uses.
    """

    size: int
    passes: int
    kinds: tuple[str, ...]
    ties: tuple[tuple[int, int], ...]
    core: tuple[Use, ...]
    optimizer: int
    rounds: tuple[Round, ...]


def ways(kind: str, reentrant: bool) -> list[str]:
    found = ["call", "checkpoint"]
    return found + ["borrow"] * (kind == "linear") + ["reentrant checkpoint"] * reentrant


def uses_of(
    kinds: Sequence[str], indices: Sequence[int], reentrant: bool
) -> st.SearchStrategy[tuple[Use, ...]]:
    pairs = [(index, way) for index in indices for way in ways(kinds[index], reentrant)]
    return st.lists(st.sampled_from(pairs), max_size=3).map(tuple) if pairs else st.just(())


def rounds_of(
    size: int, passes: int, blocks: int, uses: st.SearchStrategy[Any], alike: bool
) -> st.SearchStrategy[Round]:
    arguments = st.sampled_from([{}, {"set_to_none": True}, {"set_to_none": False}])
    of_rank = st.tuples(*[uses] * passes)
    return st.builds(
        Round,
        uses=of_rank.map(lambda one: (one,) * size) if alike else st.tuples(*[of_rank] * size),
        frozen=st.none() | st.none() | st.frozensets(st.integers(0, blocks - 1), max_size=blocks),
        zeroing=st.tuples(st.sampled_from(["optimizer", "optimizer", "model"]), arguments),
        zeroes_late=st.booleans(),
        # Dropped gradients must have been computed by all ranks: who has sent one waits for the others.
        steps=st.integers(0, 4).map(bool) if alike else st.just(True),
        early_look=st.sampled_from(["none"] * 4 + ["evaluate"]),
        look=st.sampled_from(["none"] * 4 + ["evaluate", "state", "parameters", "copy"]),
        decay=st.sampled_from([1.0, 1.0, 0.5]),
    )


@st.composite
def programs(draw: st.DrawFn) -> Program:
    size, passes = draw(st.integers(2, 3)), draw(st.sampled_from([1, 1, 2]))
    kinds = tuple(draw(st.lists(st.sampled_from(list(BLOCKS)), min_size=1, max_size=4)))
    linear = [index for index, kind in enumerate(kinds) if kind == "linear"]
    ties = tuple((index, linear[0]) for index in linear[1:] if draw(st.booleans()))
    core = draw(uses_of(kinds, range(len(kinds)), reentrant=True))
    # Each reentrant checkpoint fires by itself, and a parameter must not fire more often than at first.
    fires_often = {index for index, way in core if way == "reentrant checkpoint"}
    if fires_often & {index for tie in ties for index in tie}:
        fires_often |= {index for tie in ties for index in tie}
    rest = uses_of(kinds, [index for index in range(len(kinds)) if index not in fires_often], reentrant=False)
    each = rounds_of(size, passes, len(kinds), rest, draw(st.booleans()))
    rounds = tuple(draw(st.lists(each, min_size=STEPS, max_size=STEPS)))
    return Program(size, passes, kinds, ties, core, draw(st.integers(0, len(OPTIMIZERS) - 1)), rounds)


class Network(nn.Module):
    """The model of a program. Not to be made by several threads at once."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(5)
            self.blocks = nn.ModuleList(BLOCKS[kind]() for kind in program.kinds)
        for one, other in program.ties:
            self.blocks[one].weight = self.blocks[other].weight
        self.core = program.core

    def forward(self, x: Tensor, uses: Sequence[Use] = ()) -> Tensor:
        for index, way in (*self.core, *uses):
            x = torch.tanh(x + self._used(self.blocks[index], way, x))
        return x

    def _used(self, block: Any, way: str, x: Tensor) -> Tensor:
        result: Tensor
        if way == "call":
            result = block(x)
        elif way == "borrow":
            result = F.linear(x, block.weight)
        else:
            result = checkpoint(block, x, use_reentrant=way.startswith("reentrant"))
        return result

    @torch.no_grad()
    def evaluate(self) -> Tensor:
        """Use everything."""
        self.eval()
        result: Tensor = self(
            torch.ones(1, 2, zoo.WIDTH), [(index, "call") for index in range(len(self.blocks))]
        )
        self.train()
        return result
