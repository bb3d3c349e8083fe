"""Random models with random lives, trained across the barrier, equal what plain optimizers compute."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from torch import Tensor, nn

from byteps.session import Session
from byteps.testing import cluster

from . import zoo
from .programs import OPTIMIZERS, Network, Program, Round, programs
from .recipes import Wrap, assert_same_state
from .training import assert_same, crossing, distributed, parameters

STALL_TIMEOUT_S = 10.0
EXAMPLE_TIMEOUT_S = 30.0

LOOKS: dict[str, Callable[[Network], list[Tensor]]] = {
    "none": lambda model: [],
    "evaluate": lambda model: [model.evaluate()],
    "state": lambda model: [value.clone() for value in model.state_dict().values()],
    "parameters": lambda model: [p.detach().clone() for p in model.parameters()],
    "copy": lambda model: parameters(copy.deepcopy(model)),
}


class Trainee:
    """One rank's model and optimizer, and all that was seen of them."""

    def __init__(self, program: Program, rank: int) -> None:
        self.rank = rank
        self.model = Network(program)
        self.optimizer: Any = OPTIMIZERS[program.optimizer](self.model.parameters())
        self.seen: list[Tensor] = []
        # Kept, because listing a module's parameters waits for them.
        self._blocks = [list(block.parameters()) for block in self.model.blocks]
        self._may_zero_model = True

    def backward(self, number: int, this: Round) -> None:
        """All that comes before the step."""
        if this.frozen is not None:
            self._freeze(this.frozen)
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

    def _freeze(self, frozen: frozenset[int]) -> None:
        for index, block in enumerate(self._blocks):
            for parameter in block:
                parameter.requires_grad_(index not in frozen)

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


def live(trainee: Trainee, program: Program, session: Session, wrap: Wrap) -> None:
    """One rank of the job."""
    plain, passes = trainee.optimizer, program.passes
    trainee.optimizer = wrap(trainee.model, session, lambda _: plain, backward_passes_per_step=passes)
    for number, this in enumerate(program.rounds):
        trainee.backward(number, this)
        trainee.step(this)


def run_bounded(sessions: Sequence[Session], function: Callable[[Session], None]) -> None:
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


def check(program: Program, wrap: Wrap) -> None:
    """All that is seen is bitwise what plain optimizers give."""
    trainees = [Trainee(program, rank) for rank in range(program.size)]
    with cluster(program.size, 2, deterministic=True, stall_timeout_s=STALL_TIMEOUT_S) as sessions:
        run_bounded(sessions, lambda session: live(trainees[session.rank], program, session, wrap))
        for found, wanted in zip(trainees, expected(program), strict=True):
            assert_same(found.seen, wanted.seen)
            assert_same_state(found.optimizer.state_dict(), wanted.optimizer.state_dict())
            assert_same(parameters(found.model), parameters(wanted.model))


# Shrinking runs failing programs again and again, and each may take until a timeout.
SETTINGS = settings(
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@settings(SETTINGS, max_examples=200)
@given(programs())
@pytest.mark.timeout(180)
def test_across_the_barrier(program: Program) -> None:
    check(program, crossing)


@settings(SETTINGS, max_examples=20)
@given(programs())
def test_the_distributed_optimizer_does_the_same(program: Program) -> None:
    check(program, distributed)
