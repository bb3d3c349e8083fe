"""Trains with torch's DistributedDataParallel, with and without byteps as its hook; writes what differs.

A program for torchrun, run by test_torch_ddp_hook.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import byteps.torch as bps
from byteps.adapters.current import current
from byteps.session import Buffer, Handle
from byteps.wire import TensorSpec

FEATURES = 6
SMALL_BUCKETS: dict[str, Any] = {"bucket_cap_mb": 0.0005}
"""Several for each model, and another layout from the second step on."""
Hook = Callable[[DistributedDataParallel], None]


class Forked(nn.Module):
    """The ranks use one branch or both by turns; nobody uses the third."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(FEATURES, 8)
        self.branches = nn.ModuleList(nn.Linear(8, 3) for _ in range(3))

    def forward(self, x: Tensor, step: int = 0) -> Tensor:
        x = self.enter(x).tanh()
        result: Tensor = self.branches[0](x)
        if (step + dist.get_rank()) % 2:
            result = result + self.branches[1](x)
        return result


def chain() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 9), nn.Tanh(), nn.Linear(9, 7), nn.Tanh(), nn.Linear(7, 3))


def made(make: Callable[[], nn.Module], dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(3)
    return make().to(dtype)


def inputs(step: int, dtype: torch.dtype) -> Tensor:
    """[5, FEATURES], different by rank."""
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    return torch.randn(5, FEATURES, generator=generator, dtype=torch.float64).to(dtype)


def train(
    hook: Hook,
    make: Callable[[], nn.Module] = chain,
    dtype: torch.dtype = torch.float64,
    unsynchronized: int = 0,
    **options: Any,
) -> list[Tensor]:
    """Five steps, each after as many backward passes that only accumulate; the parameters at the end."""
    model = DistributedDataParallel(made(make, dtype), **options)
    hook(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(5):
        optimizer.zero_grad()
        for number in range(unsynchronized + 1):
            with ExitStack() as stack:
                if number < unsynchronized:
                    stack.enter_context(model.no_sync())
                x = inputs(10 * step + number, dtype)
                output = model(x, step) if make is Forked else model(x)
                output.square().mean().backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def gan(hook: Hook) -> list[Tensor]:
    """Two models; each one's backward pass in its own step."""
    generator = DistributedDataParallel(made(lambda: nn.Linear(FEATURES, FEATURES), torch.float64))
    critic = DistributedDataParallel(made(chain, torch.float64))
    models = (generator, critic)
    for model in models:
        hook(model)
    optimizers = [torch.optim.Adam(model.parameters(), lr=0.01) for model in models]
    for step in range(5):
        x = inputs(step, torch.float64)
        for optimizer in optimizers:
            optimizer.zero_grad()
            fake = generator(x)
            judged = critic(fake) if optimizer is optimizers[0] else critic(x) - critic(fake.detach())
            judged.square().mean().backward()
            optimizer.step()
    return [parameter.detach() for model in models for parameter in model.parameters()]


CASES: dict[str, Callable[[Hook], list[Tensor]]] = {
    "one bucket": train,
    "small buckets": lambda hook: train(hook, **SMALL_BUCKETS),
    "views": lambda hook: train(hook, gradient_as_bucket_view=True, **SMALL_BUCKETS),
    "unused": lambda hook: train(hook, Forked, find_unused_parameters=True, **SMALL_BUCKETS),
    "static": lambda hook: train(hook, static_graph=True, **SMALL_BUCKETS),
    "no_sync": lambda hook: train(hook, unsynchronized=2, **SMALL_BUCKETS),
    "float32": lambda hook: train(hook, dtype=torch.float32),
    "float16": lambda hook: train(hook, dtype=torch.float16),
    "bfloat16": lambda hook: train(hook, dtype=torch.bfloat16),
    "gan": gan,
}


def with_names(model: DistributedDataParallel) -> None:
    model.register_comm_hook(bps.DDPState(model), bps.ddp_hook)


def without_names(model: DistributedDataParallel) -> None:
    model.register_comm_hook(None, bps.ddp_hook)


def nothing(model: DistributedDataParallel) -> None:
    pass


def differences() -> Iterator[tuple[str, float]]:
    """The largest difference from plain DistributedDataParallel in each case."""
    for name, case in CASES.items():
        plain = case(nothing)
        for label, hook in (("names", with_names), ("numbers", without_names)):
            pairs = zip(case(hook), plain, strict=True)
            yield f"{name}, {label}", max(float((a - b).abs().max()) for a, b in pairs)


def failure(hook: Hook, make: Callable[[], nn.Module] = chain, **options: Any) -> str:
    """What a step that cannot work raises."""
    try:
        train(hook, make, **options)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(4, 3, sparse=True)

    def forward(self, x: Tensor) -> Tensor:
        rows: Tensor = self.rows(torch.arange(4))
        return rows * x.sum()


def urgency() -> list[str]:
    """Names of a model's gradients, the most urgent first."""
    session = current()
    submit, priorities = session.submit, {}

    def noted(spec: TensorSpec, *buffers: Buffer | None, priority: int = 0) -> Handle:
        priorities[spec.name] = priority
        return submit(spec, *buffers, priority=priority)

    session.submit = noted  # type: ignore[method-assign, assignment]
    train(with_names, **SMALL_BUCKETS)
    session.submit = submit  # type: ignore[method-assign]
    return sorted(priorities, key=lambda name: priorities[name], reverse=True)


def report() -> dict[str, Any]:
    """All that the test looks at."""
    found: dict[str, Any] = {"differences": dict(differences())}
    servers = current().communicator.servers_of  # type: ignore[attr-defined]
    found["placed"] = [len(servers(f"gradient.{name}")) for name, _ in chain().named_parameters()]
    found["urgency"] = urgency()
    found["sparse"] = failure(with_names, Sparse)
    alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]
    found["ranks"] = failure(with_names, process_group=alone)
    model = DistributedDataParallel(made(chain, torch.float64))
    with_names(model)
    model(inputs(0, torch.float64)).sum().backward()
    dist.barrier()
    if dist.get_rank():
        bps.shutdown()
    dist.barrier()
    try:
        model(inputs(1, torch.float64)).sum().backward()
    except RuntimeError as error:
        found["left"] = str(error)
    bps.shutdown()
    threads = [thread for thread in threading.enumerate() if thread.name == "byteps-ddp"]
    for thread in threads:
        thread.join(5)
    found["threads"] = sum(thread.is_alive() for thread in threads)
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    bps.init()
    result = report()
    (Path(sys.argv[1]) / f"{dist.get_rank()}.json").write_text(json.dumps(result))
    dist.destroy_process_group()
