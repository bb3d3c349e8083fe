"""How each system trains the emulated model: what wraps the model, the optimizer or the step.

Frameworks are imported where they are used: peers run in environments of their own.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from benchmarks.emulated.model import LEARNING_RATE
from benchmarks.emulated.profiles import SCALE

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


@dataclass(frozen=True, slots=True)
class System:
    """A system that trains.

    Args:
        start: Joins the job, given rank and size.
        wrap: Makes a training of a model.
        stop: Leaves the job.
    """

    start: Callable[[int, int], object]
    wrap: Callable[[torch.nn.Module], Training]
    stop: Callable[[], object]


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


def push_pull(model: torch.nn.Module) -> Training:
    """A push_pull of every gradient as soon as it is there, as a script would write it by hand."""
    bps = _byteps()
    optimizer = sgd(model)
    handles: list[Any] = []

    def send(name: str, parameter: Tensor) -> None:
        handles.append(bps.push_pull_async_inplace(parameter.grad, average=True, name=name))

    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda parameter, name=name: send(name, parameter))

    def step() -> None:
        for handle in handles:
            bps.synchronize(handle)
        handles.clear()
        optimizer.step()

    return Training(model, optimizer.zero_grad, step)


def serial_ps(model: torch.nn.Module) -> Training:
    """Compute, then push all gradients, then pull all sums, then go on: a parameter server without overlap.

    A push that nobody's pull answers: of each sum, only one rank gets a copy back during the push phase, which
    needs a fraction of the idle direction. In the pull phase that rank hands it to the servers again, and
    they send it to all ranks, itself included. So the busy direction carries the model's bytes once in each
    phase, and the two phases do not overlap.
    """
    bps, optimizer, parameters = _byteps(), sgd(model), dict(model.named_parameters())
    session = importlib.import_module("byteps.adapters.current").current()
    specs, buffer = (
        _serial_specs(parameters, session.size),
        importlib.import_module("byteps.torch.transfers").buffer,
    )

    def phase(kind: str) -> None:
        handles = []
        for (spec, owner), parameter in zip(specs[kind], parameters.values(), strict=True):
            memory, own = buffer(parameter.grad), owner == session.rank
            pair = (memory, memory if own else None) if kind == "push" else (memory if own else None, memory)
            handles.append(session.submit(spec, *pair))
        for handle in handles:
            handle.wait()

    def step() -> None:
        bps.barrier()
        phase("push")
        phase("pull")
        optimizer.step()

    for kind in specs:
        session.declare([spec for spec, _ in specs[kind]])
    return Training(model, optimizer.zero_grad, step)


def _serial_specs(parameters: Mapping[str, Tensor], size: int) -> dict[str, list[tuple[Any, int]]]:
    """What is declared in each phase of ``serial_ps``, each with the rank that owns the sum."""
    wire, dtypes = (importlib.import_module(f"byteps.{name}") for name in ("wire", "dtypes"))
    specs: dict[str, list[tuple[Any, int]]] = {"push": [], "pull": []}
    for number, (name, parameter) in enumerate(parameters.items()):
        owner, shape = number % size, tuple(parameter.shape)
        push = wire.TensorSpec(f"push.{name}", dtypes.DType.FLOAT32, shape, dtypes.ReduceOp.AVERAGE)
        pull = wire.TensorSpec(f"pull.{name}", dtypes.DType.FLOAT32, shape, dtypes.ReduceOp.COPY, root=owner)
        specs["push"].append((push, owner))
        specs["pull"].append((pull, owner))
    return specs


def ddp(model: torch.nn.Module) -> Training:
    """Torch's DistributedDataParallel; its buckets are scaled like everything else."""
    optimizer = sgd(model)
    wrapped = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=BUCKET_MB)  # type: ignore[arg-type]
    return Training(wrapped, optimizer.zero_grad, optimizer.step)


def horovod(model: torch.nn.Module) -> Training:
    """Horovod's ``DistributedOptimizer``."""
    hvd: Any = importlib.import_module("horovod.torch")
    optimizer = hvd.DistributedOptimizer(sgd(model), named_parameters=model.named_parameters())
    return Training(model, optimizer.zero_grad, optimizer.step)


def cross(model: torch.nn.Module) -> Training:
    """Byteps's ``CrossBarrier``: the next forward pass begins while results are still to come."""
    optimizer = _byteps().CrossBarrier(model, sgd(model), model.named_parameters())
    return Training(model, optimizer.zero_grad, optimizer.step, optimizer.synchronize)


def _byteps() -> Any:
    return importlib.import_module("byteps.torch")


def _start_gloo(rank: int, size: int) -> None:
    torch.distributed.init_process_group("gloo", init_method=sys.argv[4], rank=rank, world_size=size)


def _of_byteps(wrap: Callable[[torch.nn.Module], Training]) -> System:
    return System(lambda rank, size: _byteps().init(), wrap, lambda: _byteps().shutdown())


def _of_horovod() -> Any:
    return importlib.import_module("horovod.torch")


SYSTEMS: Mapping[str, System] = {
    "cross": _of_byteps(cross),
    "plain": _of_byteps(plain),
    "push-pull": _of_byteps(push_pull),
    "serial-ps": _of_byteps(serial_ps),
    "ddp": System(_start_gloo, ddp, torch.distributed.destroy_process_group),
    "horovod": System(lambda rank, size: _of_horovod().init(), horovod, lambda: _of_horovod().shutdown()),
}
