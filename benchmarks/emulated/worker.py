"""One rank of an emulated training: ``python -m benchmarks.emulated.worker SYSTEM RANK SIZE``.

Requests (see ``peers.answers``) say what to ``do``: ``prepare`` a model, take steps to ``compute`` alone or to
``train`` (both answer with the moments at which steps ended), ``check`` the parameters.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch

from benchmarks.emulated.model import EmulatedModel, expected
from benchmarks.emulated.profiles import Layer, layers
from benchmarks.emulated.systems import SYSTEMS, System, Training, alone
from benchmarks.peers.answers import answer_requests, wait_until


class Worker:
    """Answers requests.

    Args:
        system: What trains.
        rank, size: This rank and how many there are.
    """

    def __init__(self, system: System, rank: int, size: int) -> None:
        self._system = system
        self._rank, self._size = rank, size
        self._layers: list[Layer] = []
        self._model = torch.nn.Module()
        self._training: Training | None = None
        self._steps = 0

    def handle(self, request: dict[str, Any]) -> object:
        """Answer one request."""
        kind = request.pop("do")
        return {"prepare": self.prepare, "compute": self.compute, "train": self.train, "check": self.check}[
            kind
        ](**request)

    def prepare(self, profile: str, compute_s: float) -> int:
        """Begin the training of a model; answers with the bytes of its gradients."""
        self._layers = layers(profile, compute_s)
        self._training = None
        self._model = EmulatedModel(self._rank, self._layers)
        self._training = self._system.wrap(self._model)
        self._steps = 0
        return sum(layer.nbytes for layer in self._layers)

    def compute(self, steps: int, begin: float) -> list[float]:
        """Steps of the model without communication."""
        return take_steps(alone(EmulatedModel(self._rank, self._layers)), steps, begin)

    def train(self, steps: int, begin: float) -> list[float]:
        """Steps of the training."""
        assert self._training is not None
        self._steps += steps
        return take_steps(self._training, steps, begin)

    def check(self) -> bool:
        """Whether the parameters are what all steps so far should have made of them, bit by bit."""
        wanted = expected(self._layers, self._size, self._steps)
        return all(
            torch.equal(parameter, reference)
            for parameter, reference in zip(self._model.parameters(), wanted, strict=True)
        )


def take_steps(training: Training, steps: int, begin: float) -> list[float]:
    """Train for some steps, beginning at a moment of the monotonic clock.

    Returns:
        The moments at which the first step began and each ended, by the same clock. What a step leaves in
        flight is waited for after the last one's end.
    """
    wait_until(begin)
    moments = [time.monotonic()]
    for _ in range(steps):
        training.zero_grad()
        training.forward().backward()
        training.step()
        moments.append(time.monotonic())
    training.drain()
    return moments


def main() -> None:
    """One worker."""
    name, rank, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    system = SYSTEMS[name]
    system.start(rank, size)
    answer_requests(Worker(system, rank, size).handle)
    system.stop()


if __name__ == "__main__":
    main()
