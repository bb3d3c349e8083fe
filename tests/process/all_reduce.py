"""What the ranks of ``test_all_reduce`` run: ``python -m tests.process.all_reduce WHAT``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import byteps.torch as bps

STEPS, PASSES = 30, 2
LOST_AT = 5


class Model(nn.Module):
    """Tied weights, and a branch for each rank that the others do not use."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(50, 24)
        self.body = nn.Linear(24, 24)
        self.branches = nn.ModuleList(nn.Linear(24, 24) for _ in range(4))
        self.head = nn.Linear(24, 50, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor, branch: int) -> Tensor:
        """The loss."""
        hidden = torch.tanh(self.body(self.embed(tokens)))
        hidden = hidden + self.branches[branch](hidden)
        return nn.functional.cross_entropy(self.head(hidden), tokens.roll(1, 0))


def losses(model: Callable[[Tensor, int], Tensor], rank: int, step: int) -> Iterable[Tensor]:
    """The losses of a step's backward passes."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    for _ in range(PASSES):
        tokens = torch.randint(0, 50, (16,), generator=generator)
        yield model(tokens, (rank + step // 10) % 2) / PASSES


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def with_byteps(crossing: bool) -> list[Tensor]:
    model = Model()
    optimizer: Any
    names = list(model.named_parameters())
    if crossing:
        optimizer = bps.CrossBarrier(model, sgd(model), names, backward_passes_per_step=PASSES)
    else:
        optimizer = bps.DistributedOptimizer(sgd(model), names, backward_passes_per_step=PASSES)
    for step in range(STEPS):
        optimizer.zero_grad()
        for loss in losses(model, bps.rank(), step):
            loss.backward()
        optimizer.step()
    if crossing:
        optimizer.flush()
    return [parameter.detach() for parameter in model.parameters()]


def with_ddp(rank: int) -> list[Tensor]:
    model = Model()
    wrapped = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = sgd(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        found = iter(losses(wrapped, rank, step))
        with wrapped.no_sync():
            for _ in range(PASSES - 1):
                next(found).backward()
        next(found).backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def equal() -> None:
    """Both optimizers give what DistributedDataParallel gives."""
    bps.init()
    rank, size = bps.rank(), bps.size()
    found = [with_byteps(crossing) for crossing in (False, True)]
    bps.shutdown()
    store = f"file://{os.environ['STORE']}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
    wanted = with_ddp(rank)
    dist.destroy_process_group()
    for parameters in found:
        for own, other in zip(parameters, wanted, strict=True):
            if size == 2:
                assert torch.equal(own, other), (own - other).abs().max()
            else:
                # Four numbers add up differently in another order. Relative to the tensor: some are near 0.
                assert (own - other).abs().max() <= 1e-6 * other.abs().max()
    print("equal")


def beside() -> None:
    """The script has a process group of its own and uses it meanwhile; groups of other ranks are refused."""
    rank, size = int(os.environ["BYTEPS_RANK"]), int(os.environ["BYTEPS_SIZE"])
    store = f"file://{os.environ['STORE']}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
    bps.init()
    data = torch.full((300_000,), float(rank + 1))
    for _ in range(10):
        handle = bps.push_pull_async(data, name="x", average=False)
        own = torch.ones(1000)
        dist.all_reduce(own)
        assert torch.all(own == size)
        assert torch.all(bps.synchronize(handle) == size * (size + 1) / 2)
    bps.shutdown()
    dist.destroy_process_group()
    print("equal")


def other_ranks() -> None:
    """The script's process group has other ranks than the job."""
    store = dist.FileStore(  # type: ignore[attr-defined]
        f"{os.environ['STORE']}.{os.environ['BYTEPS_RANK']}", 1
    )
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    bps.init()


def some_have_a_group() -> None:
    """Rank 0 has no process group any more when it calls init(), rank 1 has."""
    rank, size = int(os.environ["BYTEPS_RANK"]), int(os.environ["BYTEPS_SIZE"])
    store = f"file://{os.environ['STORE']}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
    if rank == 0:
        dist.destroy_process_group()
    bps.init()


def group_destroyed() -> None:
    """The script destroys its process group before byteps has been shut down."""
    rank, size = int(os.environ["BYTEPS_RANK"]), int(os.environ["BYTEPS_SIZE"])
    store = f"file://{os.environ['STORE']}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
    bps.init()
    bps.push_pull(torch.ones(1000), name="x", average=False)
    dist.destroy_process_group()
    assert torch.all(bps.push_pull(torch.ones(1000), name="x", average=False) == size)
    bps.shutdown()
    print("equal")


def lost() -> None:
    """Rank 1 dies within a step; the others keep what they had."""
    bps.init()
    model = nn.Linear(500, 500)
    optimizer = bps.DistributedOptimizer(sgd(model), model.named_parameters())
    for step in range(1000):
        before = [parameter.detach().clone() for parameter in model.parameters()]
        optimizer.zero_grad()
        model(torch.ones(500)).square().mean().backward()
        if step == LOST_AT and bps.rank() == 1:
            end = os.environ["END"]
            if end == "leave":
                bps.shutdown()
                return
            os.kill(os.getpid(), int(end))
        try:
            optimizer.step()
        except RuntimeError as error:
            same = all(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))
            print(f"{type(error).__name__} untouched={same} {error}", flush=True)
            sys.exit(1)


def disagree() -> None:
    """Rank 1 was told to use servers."""
    if os.environ["BYTEPS_RANK"] == "1":
        os.environ["BYTEPS_COMMUNICATOR"] = "parameter-server"
    bps.init(join_timeout_s=10.0)


def under_torchrun() -> None:
    """Nothing is set but what torchrun sets."""
    bps.init(communicator="allreduce")
    data = bps.push_pull(torch.full((100_000,), float(bps.rank() + 1)), name="x", average=False)
    assert torch.all(data == 3)
    Path(f"{os.environ['STORE']}.{bps.rank()}").write_text("equal", encoding="utf-8")
    bps.shutdown()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
