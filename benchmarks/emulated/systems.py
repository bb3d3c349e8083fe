"""How each system trains the emulated model: what wraps the model, the optimizer or the step.

Frameworks are imported where they are used: peers run in environments of their own.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from benchmarks.emulated.model import LEARNING_RATE, EmulatedModel
from benchmarks.emulated.profiles import SCALE, Layer
from benchmarks.peers.answers import wait_until

# What DistributedDataParallel takes by default, at the emulation's scale.
BUCKET_MB = 25 / SCALE


@dataclass(frozen=True, slots=True)
class Training:
    """A model that is trained by a system.

    Args:
        forward: Computes the loss.
        zero_grad: Drops the gradients.
        step: Updates the parameters.
        drain: Waits for what a step has left in flight.
    """

    forward: Callable[[], Tensor]
    zero_grad: Callable[[], object]
    step: Callable[[], object]
    drain: Callable[[], object] = lambda: None

    def once(self) -> None:
        """Take one step."""
        self.zero_grad()
        self.forward().backward()
        self.step()


@dataclass(frozen=True, slots=True)
class Steps:
    """The same for a framework whose step is one function.

    Args:
        once: Takes one step.
        drain: Waits for what a step has left in flight.
    """

    once: Callable[[], object]
    drain: Callable[[], object] = lambda: None


@dataclass(frozen=True, slots=True)
class System:
    """A system that trains.

    Args:
        start: Joins the job, given rank and size.
        wrap: Makes a training of a model.
        stop: Leaves the job.
        model: Makes the model of a rank, given its layers.
        alone: Makes a training of a model without communication; torch's if None.
    """

    start: Callable[[int, int], object]
    wrap: Callable[[Any], Training | Steps]
    stop: Callable[[], object]
    model: Callable[[int, Sequence[Layer]], Any] = EmulatedModel
    alone: Callable[[Any], Training | Steps] | None = None


def take_steps(training: Training | Steps, steps: int, begin: float) -> list[float]:
    """Train for some steps, beginning at a moment of the monotonic clock.

    Returns:
        The moments at which the first step began and each ended, by the same clock. What a step leaves in
        flight is waited for after the last one's end.
    """
    wait_until(begin)
    moments = [time.monotonic()]
    for _ in range(steps):
        training.once()
        moments.append(time.monotonic())
    training.drain()
    return moments


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    """The optimizer that all systems use."""
    return torch.optim.SGD(model.parameters(), LEARNING_RATE)


def alone(model: torch.nn.Module) -> Training:
    """No communication."""
    optimizer = sgd(model)
    return Training(model, optimizer.zero_grad, optimizer.step)


def plain(model: torch.nn.Module) -> Training:
    """Byteps's ``DistributedOptimizer``: the step waits for all results."""
    optimizer = _byteps().DistributedOptimizer(sgd(model), model.named_parameters())
    return Training(model, optimizer.zero_grad, optimizer.step)


def ddp(model: torch.nn.Module) -> Training:
    """Torch's DistributedDataParallel; its buckets are scaled like everything else."""
    optimizer = sgd(model)
    wrapped = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=BUCKET_MB)
    return Training(wrapped, optimizer.zero_grad, optimizer.step)


def split(model: torch.nn.Module) -> Training:
    """All-reduce in two halves, in buckets of DDP's size."""
    halves: Any = importlib.import_module("benchmarks.emulated.split")
    training: Training = halves.split(model, round(BUCKET_MB * 2**20))
    return training


def horovod(model: torch.nn.Module) -> Training:
    """Horovod's ``DistributedOptimizer``."""
    hvd: Any = importlib.import_module("horovod.torch")
    optimizer = hvd.DistributedOptimizer(sgd(model), named_parameters=model.named_parameters())
    return Training(model, optimizer.zero_grad, optimizer.step)


def cross(model: torch.nn.Module) -> Training:
    """Byteps's ``CrossBarrier``: the next forward pass begins while results are still to come."""
    optimizer = _byteps().CrossBarrier(model, sgd(model), model.named_parameters())
    return Training(model, optimizer.zero_grad, optimizer.step, optimizer.flush)


def _byteps() -> Any:
    return importlib.import_module("byteps.torch")


def _by_hand(name: str) -> Callable[[torch.nn.Module], Training]:
    def wrap(model: torch.nn.Module) -> Training:
        training: Training = getattr(importlib.import_module("benchmarks.emulated.by_hand"), name)(model)
        return training

    return wrap


def _start_gloo(rank: int, size: int) -> None:
    torch.distributed.init_process_group("gloo", init_method=sys.argv[4], rank=rank, world_size=size)


def _of_byteps(wrap: Callable[[torch.nn.Module], Training]) -> System:
    return System(lambda rank, size: _byteps().init(), wrap, lambda: _byteps().shutdown())


def _of_framework(name: str, wrap: str = "plain") -> System:
    """Byteps in another framework; the framework is imported when it is used."""

    def module() -> Any:
        return importlib.import_module(f"benchmarks.emulated.in_{name}")

    def model(rank: int, layers: Sequence[Layer]) -> Any:
        found = module()
        return (found.TensorFlowModel if name == "tensorflow" else found.JaxModel)(rank, layers)

    def wrapped(model: Any) -> Steps:
        found = getattr(module(), wrap)(model)
        return Steps(*found) if isinstance(found, tuple) else Steps(found)

    def start(rank: int, size: int) -> None:
        importlib.import_module(f"byteps.{name}").init()

    def stop() -> None:
        importlib.import_module(f"byteps.{name}").shutdown()

    return System(start, wrapped, stop, model, lambda model: Steps(module().alone(model)))


def _of_horovod() -> Any:
    return importlib.import_module("horovod.torch")


SYSTEMS: Mapping[str, System] = {
    "cross": _of_byteps(cross),
    "plain": _of_byteps(plain),
    "tensorflow": _of_framework("tensorflow"),
    "tensorflow-cross": _of_framework("tensorflow", "cross"),
    "jax": _of_framework("jax"),
    "allreduce-cross": _of_byteps(cross),
    "allreduce": _of_byteps(plain),
    "push-pull": _of_byteps(_by_hand("push_pull")),
    "serial-ps": _of_byteps(_by_hand("serial_ps")),
    "ddp": System(_start_gloo, ddp, torch.distributed.destroy_process_group),
    "split": System(_start_gloo, split, torch.distributed.destroy_process_group),
    "horovod": System(lambda rank, size: _of_horovod().init(), horovod, lambda: _of_horovod().shutdown()),
}
