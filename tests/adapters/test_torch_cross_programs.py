"""Random models with random lives, trained across the barrier, equal what plain optimizers compute."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (its usual name)
from torch.optim import SGD, AdamW, NAdam, Optimizer
from torch.utils.checkpoint import checkpoint

from byteps.session import Session
from byteps.testing import cluster

from . import zoo
from .recipes import assert_same_state
from .training import assert_same, crossing, parameters

STEPS = 10
EXAMPLE_TIMEOUT_S = 30.0

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
LOOKS: dict[str, Callable[[Network], list[Tensor]]] = {
    "none": lambda model: [],
    "evaluate": lambda model: [model.evaluate()],
    "state": lambda model: [value.clone() for value in model.state_dict().values()],
    "parameters": lambda model: [p.detach().clone() for p in model.parameters()],
    "copy": lambda model: parameters(copy.deepcopy(model)),
}


@dataclass(frozen=True)
class Round:
    """One step of all ranks.

    Attributes:
        uses: What each rank's forward passes use besides the core, by rank and pass.
        frozen: Blocks that require no gradient.
        zeroing: Who drops the gradients and what it is told, before the forward pass or after the first.
        zeroes_late: Which of these.
        steps: Whether the gradients are used.
        early_look: What is read between the backward passes and the step.
        look: What is read after the step.
        decay: The learning rate is multiplied by this after the step.
    """

    uses: tuple[tuple[tuple[Use, ...], ...], ...]
    frozen: frozenset[int]
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
        frozen=st.frozensets(st.integers(0, blocks - 1), max_size=blocks),
        zeroing=st.tuples(st.sampled_from(["optimizer", "optimizer", "model"]), arguments),
        zeroes_late=st.booleans(),
        # Dropped gradients must have been computed by all ranks: who has sent one waits for the others.
        steps=st.integers(0, 4).map(bool) if alike else st.just(True),
        early_look=st.sampled_from(["none"] * 4 + ["evaluate"]),
        look=st.sampled_from(["none"] * 4 + list(LOOKS)),
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
        result = self(torch.ones(1, 2, zoo.WIDTH), [(index, "call") for index in range(len(self.blocks))])
        self.train()
        return result


class Trainee:
    """One rank's model and optimizer, and all that was seen of them."""

    def __init__(self, program: Program, rank: int) -> None:
        self.rank = rank
        self.model = Network(program)
        self.optimizer: Any = OPTIMIZERS[program.optimizer](self.model.parameters())
        self.seen: list[Tensor] = []
        self._may_zero_model = True

    def backward(self, number: int, this: Round) -> None:
        """All that comes before the step."""
        for index, block in enumerate(self.model.blocks):
            block.requires_grad_(index not in this.frozen)
        if not this.zeroes_late:
            self._zero(this)
        for count, uses in enumerate(this.uses[self.rank]):
            generator = torch.Generator().manual_seed(100 * number + 10 * count + self.rank)
            inputs = torch.randn(1, 2, zoo.WIDTH, generator=generator).requires_grad_()
            loss = (self.model(inputs, uses) * torch.randn(zoo.WIDTH, generator=generator)).sum()
            self.seen.append(loss.detach())
            if this.zeroes_late and count == 0:
                self._zero(this)
            loss.backward()
        self.seen += LOOKS[this.early_look](self.model)

    def step(self, this: Round) -> None:
        """The step and what comes after it."""
        if this.steps:
            self.optimizer.step()
        for group in self.optimizer.param_groups:
            group["lr"] *= this.decay
        self.seen += LOOKS[this.look](self.model)
        self._may_zero_model = this.steps

    def _zero(self, this: Round) -> None:
        who, arguments = this.zeroing
        # Gradients that are not used must be dropped through the optimizer, which may have sent them.
        zeroing: Any = self.model if who == "model" and self._may_zero_model else self.optimizer
        zeroing.zero_grad(**arguments)


class Averaging:
    """What ranks agree on in each round: averages, and zeros for what all used or froze in the first."""

    def __init__(self) -> None:
        self._always: list[bool] = []

    def __call__(self, models: Sequence[nn.Module]) -> None:
        columns = list(zip(*(model.parameters() for model in models), strict=True))
        if not self._always:
            self._always = [
                all(p.grad is not None and p.requires_grad for p in column)
                or not any(p.requires_grad for p in column)
                for column in columns
            ]
            self._average(columns, [False] * len(columns))
        else:
            self._average(columns, self._always)

    def _average(self, columns: Sequence[Sequence[nn.Parameter]], always: Sequence[bool]) -> None:
        for column, zeros in zip(columns, always, strict=True):
            found = [p.grad for p in column if p.requires_grad and p.grad is not None]
            if not found and not (zeros and column[0].requires_grad):
                continue
            total = reduce(torch.add, found) / len(column) if found else torch.zeros_like(column[0])
            for parameter in column:
                parameter.grad = total.detach().clone()


def expected(program: Program) -> list[Trainee]:
    """Each rank with its plain optimizer, in turns, on averaged gradients."""
    trainees = [Trainee(program, rank) for rank in range(program.size)]
    average = Averaging()
    for number, this in enumerate(program.rounds):
        for trainee in trainees:
            trainee.backward(number, this)
        if this.steps:
            average([trainee.model for trainee in trainees])
        for trainee in trainees:
            trainee.step(this)
    return trainees


def live(trainee: Trainee, program: Program, session: Session) -> None:
    """One rank of the job."""
    plain, passes = trainee.optimizer, program.passes
    trainee.optimizer = crossing(trainee.model, session, lambda _: plain, backward_passes_per_step=passes)
    for number, this in enumerate(program.rounds):
        trainee.backward(number, this)
        trainee.step(this)


def run_bounded(function: Callable[[Session], None], sessions: Sequence[Session]) -> None:
    """Like ``run_ranks``, but what hangs fails."""
    failures: list[Exception] = []

    def work(session: Session) -> None:
        try:
            function(session)
        except Exception as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=[session], daemon=True) for session in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(EXAMPLE_TIMEOUT_S)
    if failures:
        raise failures[0]
    assert not any(thread.is_alive() for thread in threads), "hangs"


@settings(
    max_examples=200,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(programs())
@pytest.mark.timeout(180)
def test_random_models(program: Program) -> None:
    trainees = [Trainee(program, rank) for rank in range(program.size)]
    times = {"stall_warning_s": 5.0, "stall_timeout_s": 4.0}
    with cluster(program.size, 2, deterministic=True, **times) as sessions:
        run_bounded(lambda session: live(trainees[session.rank], program, session), sessions)
        states = [trainee.optimizer.state_dict() for trainee in trainees]
        for found, wanted, state in zip(trainees, expected(program), states, strict=True):
            assert_same(found.seen, wanted.seen)
            assert_same(parameters(found.model), parameters(wanted.model))
            assert_same_state(state, wanted.optimizer.state_dict())
