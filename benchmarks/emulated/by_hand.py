"""Training with single calls of byteps: at once for each gradient, or behind the backward pass."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn import Module

import byteps.torch as bps
from benchmarks.emulated.systems import Training, sgd
from byteps.adapters.current import current
from byteps.dtypes import DType, ReduceOp
from byteps.session import Handle
from byteps.torch.transfers import TensorHandle, buffer
from byteps.wire import TensorSpec


def push_pull(model: Module) -> Training:
    """A push_pull of every gradient as soon as it is there."""
    optimizer = sgd(model)
    prefix = current().next_name("push_pull")
    handles: list[TensorHandle] = []

    def send(parameter: Tensor, name: str) -> None:
        assert parameter.grad is not None
        handles.append(bps.push_pull_async_inplace(parameter.grad, average=True, name=f"{prefix}.{name}"))

    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda parameter, name=name: send(parameter, name))

    def step() -> None:
        for handle in handles:
            bps.synchronize(handle)
        handles.clear()
        optimizer.step()

    return Training(model, optimizer.zero_grad, step)


def serial_ps(model: Module) -> Training:
    """Compute, then push all gradients, then pull all sums: a parameter server without overlap.

    In the push phase, only one rank, the owner, gets a sum back; that needs a fraction of the idle direction.
    In the pull phase the owner hands it to the servers again, which send it to all ranks, the owner included.
    So the busy direction carries the model's bytes once in each phase, one phase after the other.
    """
    optimizer = sgd(model)
    parameters = list(model.parameters())
    session = current()
    prefix = session.next_name("serial_ps")
    pushes, pulls = (_specs(f"{prefix}.{phase}", parameters, phase == "pull") for phase in ("push", "pull"))
    session.declare([*pushes, *pulls])

    def step() -> None:
        handles: list[Handle] = []
        for phase in (pushes, pulls):
            for pull, spec, parameter in zip(pulls, phase, parameters, strict=True):
                assert parameter.grad is not None
                memory = buffer(parameter.grad)
                owned = memory if pull.root == session.rank else None
                source, destination = (memory, owned) if phase is pushes else (owned, memory)
                handles.append(session.submit(spec, source, destination))
            for handle in handles:
                handle.wait()
            handles.clear()
        optimizer.step()

    return Training(model, optimizer.zero_grad, step)


def _specs(prefix: str, parameters: Sequence[Tensor], pulled: bool) -> list[TensorSpec]:
    """What is declared for one phase; what is pulled comes from its owner."""
    specs = []
    for number, parameter in enumerate(parameters):
        op, root = (ReduceOp.COPY, number % current().size) if pulled else (ReduceOp.AVERAGE, -1)
        shape = tuple(parameter.shape)
        specs.append(TensorSpec(f"{prefix}.{number}", DType.FLOAT32, shape, op, root=root))
    return specs
