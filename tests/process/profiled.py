"""A training script for ``byteps profile``: its passes take known times. Words say what is unusual."""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from torch import Tensor, nn

FORWARD_S, BACKWARD_S = 0.02, 0.03
STEPS = 8


class Slowly(torch.autograd.Function):
    """The identity, which takes its time."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        """Of the forward pass."""
        time.sleep(FORWARD_S)  # workload
        return x.clone()

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        """Of the backward pass."""
        time.sleep(BACKWARD_S)  # workload
        return gradients[0]


class Slow(nn.Module):
    """A linear layer that takes its time in both directions, before its gradients are complete."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.inner = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """[samples, inputs] to [samples, outputs]."""
        result: Tensor = Slowly.apply(self.inner(x))  # type: ignore[no-untyped-call]
        return result


def main(words: list[str]) -> None:
    """Train."""
    model = nn.Sequential(Slow(8, 16), nn.ReLU(), Slow(16, 32), Slow(32, 4))
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.01)
    if "byteps" in words:
        import byteps.torch as bps

        bps.init()
        optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        for _ in range(2 if "accumulate" in words else 1):
            loss = model(torch.randn(5, 8)).square().mean()
            if "no-backward" not in words:
                loss.backward()
        if step == 3 and "fail" in words:
            raise ArithmeticError("out of luck")
        if step == 3 and "leave" in words:
            sys.exit(7)
        if "no-step" not in words:
            optimizer.step()


if __name__ == "__main__":
    main(sys.argv[1:])
