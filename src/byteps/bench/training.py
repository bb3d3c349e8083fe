"""Times training steps with and without communication, in turns, in the same processes.

Without communication the gradients come from ``torch.autograd.grad``, which calls no hooks of parameters, and
the plain optimizer steps on them: the same computation, and nothing is sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from byteps.bench.membership import Member, Table
from byteps.bench.models import WORKLOADS, Workload
from byteps.bench.plan import TrainPlan
from byteps.bench.progress import Progress
from byteps.diagnostics import count
from byteps.errors import ConfigError
from byteps.session import Session
from byteps.torch.optimizer import DistributedOptimizer

_CPU_BATCH_SIZE = 4
_LEARNING_RATE = 1e-4  # small: what is learned from random data must stay finite


def measure(member: Member, plan: TrainPlan) -> dict[str, Any]:
    """Run the plan. All ranks call this with the same plan.

    Returns:
        The report, the same on each rank: see ``report``.

    Raises:
        ConfigError: the plan cannot work.
        BytePSError: the job failed.
    """
    session = member.session
    bench = _Bench(session, plan)
    own = np.zeros((plan.blocks, 2))
    with Progress("byteps bench train", 1 + plan.blocks, shown=session.rank == 0) as progress:
        progress.begin(f"{plan.model}, warming up")
        for step in (bench.step_alone, bench.step_together):
            bench.block(step, plan.warmup)
        for block in range(plan.blocks):
            progress.begin(f"{plan.model}, {count(plan.steps, 'step')} with, and as many without")
            # Who comes first takes turns as well.
            for kind in (0, 1) if block % 2 else (1, 0):
                step = (bench.step_together, bench.step_alone)[kind]
                own[block, kind] = bench.block(step, plan.steps) / plan.steps
    table = member.by_rank(own.ravel()).reshape(session.size, plan.blocks, 2)
    return {
        "bench": "train",
        "model": plan.model,
        **bench.described(),
        "workers": session.size,
        "servers": len(member.servers),
        "steps": plan.steps,
        "blocks": plan.blocks,
        **speeds(table, bench.batch_size),
    }


def speeds(table: Table, batch_size: int) -> dict[str, Any]:
    """Medians over the blocks.

    Args:
        table: [ranks, blocks, 2]: time of a step with and without communication, in seconds.
        batch_size: samples per step and rank.
    """
    # With communication all ranks take as long as the slowest; without, each runs at its own speed.
    together = np.median(len(table) * batch_size / table[:, :, 0].max(axis=0))
    alone = np.median((batch_size / table[:, :, 1]).sum(axis=0))
    samples = len(table) * batch_size
    return {
        "samples_per_s": {"with": float(together), "without": float(alone)},
        "step_s": {"with": float(samples / together), "without": float(samples / alone)},
        "share": float(together / alone),
    }


class _Bench:
    """A model, its data and both ways to train it."""

    def __init__(self, session: Session, plan: TrainPlan) -> None:
        workload = WORKLOADS[plan.model]
        _check_length(plan, workload)
        self._session = session
        self._device = _device(plan.device, session.local_rank)
        self.batch_size = plan.batch_size or _default_batch_size(workload, self._device)
        torch.manual_seed(0)  # all ranks begin with the same parameters
        self._model = workload.build().to(self._device)
        torch.manual_seed(session.rank)
        self._batch = workload.batch(self.batch_size, plan.sequence_length, self._device)
        self._parameters = list(self._model.parameters())
        self._plain = torch.optim.SGD(self._parameters, lr=_LEARNING_RATE, momentum=0.9)
        self._distributed = DistributedOptimizer(self._plain, self._model.named_parameters(), session=session)

    def described(self) -> dict[str, Any]:
        """What is trained, for the report."""
        return {
            "parameters": sum(p.numel() for p in self._parameters),
            "gradient_bytes": sum(p.numel() * p.element_size() for p in self._parameters),
            "batch_size": self.batch_size,
            "device": str(self._device),
            "threads": torch.get_num_threads(),
        }

    def block(self, step: Callable[[], None], steps: int) -> float:
        """Seconds that some steps take; all ranks begin together."""
        self._finish()
        self._session.barrier()
        begin_s = time.perf_counter()
        for _ in range(steps):
            step()
        self._finish()
        return time.perf_counter() - begin_s

    def step_together(self) -> None:
        """One step on gradients that are averaged over all ranks."""
        self._distributed.zero_grad()
        self._model(*self._batch).backward()
        self._distributed.step()

    def step_alone(self) -> None:
        """One step on this rank's own gradients."""
        self._plain.zero_grad()
        gradients = torch.autograd.grad(self._model(*self._batch), self._parameters)
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient
        self._plain.step()

    def _finish(self) -> None:
        """Wait for what the GPU has been told to do."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def _device(name: str, local_rank: int) -> torch.device:
    """The device of this rank.

    Raises:
        ConfigError: there is none of this name.
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    name = name or ("cuda" if gpus else "cpu")
    if name == "cuda":
        if not gpus:
            raise ConfigError("--device cuda: torch sees no GPU here; leave it out to use the CPU")
        name = f"cuda:{max(0, local_rank) % gpus}"
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"--device {name}: torch cannot use it: {error}") from error


def _default_batch_size(workload: Workload, device: torch.device) -> int:
    return min(workload.batch_size, _CPU_BATCH_SIZE) if device.type == "cpu" else workload.batch_size


def _check_length(plan: TrainPlan, workload: Workload) -> None:
    if not workload.image and plan.sequence_length > workload.longest:
        raise ConfigError(
            f"--sequence-length {plan.sequence_length}: {plan.model} reads at most {workload.longest} tokens"
        )
