"""One rank of an emulated training: ``python -m benchmarks.emulated.worker SYSTEM RANK SIZE``.

Requests (see ``peers.answers``) say what to ``do``: ``prepare`` a model, take steps to ``compute`` alone or
to ``train`` (both answer with the moments at which steps ended), to ``watch`` what arrives during a forward
pass, to ``check`` the parameters.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.emulated.model import expected
from benchmarks.emulated.profiles import Layer, layers
from benchmarks.emulated.systems import SYSTEMS, Steps, System, Training, alone, take_steps
from benchmarks.peers.answers import answer_requests

INTERFACE = "eth0"


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
        self._model: Any = None
        self._training: Training | Steps | None = None
        self._steps = 0

    def handle(self, request: dict[str, Any]) -> object:
        """Answer one request."""
        does: Mapping[str, Callable[..., object]] = {
            "prepare": self.prepare,
            "compute": self.compute,
            "train": self.train,
            "watch": self.watch,
            "check": self.check,
        }
        return does[request.pop("do")](**request)

    def prepare(self, profile: str, compute_s: float) -> int:
        """Begin the training of a model; answers with the bytes of its gradients."""
        self._layers = layers(profile, compute_s)
        self._training = None
        self._model = self._system.model(self._rank, self._layers)
        self._training = self._system.wrap(self._model)
        self._steps = 0
        return sum(layer.nbytes for layer in self._layers)

    def compute(self, steps: int, begin: float) -> list[float]:
        """Steps of the model without communication."""
        without = (self._system.alone or alone)(self._system.model(self._rank, self._layers))
        return take_steps(without, steps, begin)

    def train(self, steps: int, begin: float) -> list[float]:
        """Steps of the training."""
        assert self._training is not None
        self._steps += steps
        return take_steps(self._training, steps, begin)

    def watch(self, steps: int, begin: float) -> list[int]:
        """Steps of the training; answers with the bytes that came in each between two moments.

        The first is when the first layer's forward hook runs, the second when the forward pass is over, so
        that all results of the step before have come and none of this step's has.
        """
        marks: list[int] = []
        hooks = [
            module.register_forward_hook(lambda *_: marks.append(received_bytes()))
            for module in (next(self._model.layers.children()), self._model)
        ]
        self.train(steps, begin)
        for hook in hooks:
            hook.remove()
        return [after - before for before, after in zip(marks[::2], marks[1::2], strict=True)]

    def check(self) -> bool:
        """Whether the parameters are what all steps so far should have made of them, bit by bit."""
        wanted = expected(self._layers, self._size, self._steps)
        return all(
            torch.equal(parameter, reference)
            for parameter, reference in zip(self._model.parameters(), wanted, strict=True)
        )


def received_bytes() -> int:
    """What this host's interface has received so far, headers included."""
    for line in Path("/proc/self/net/dev").read_text(encoding="ascii").splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == INTERFACE:
            return int(counters.split()[0])
    raise RuntimeError(f"this host has no interface {INTERFACE}")


def main() -> None:
    """One worker."""
    name, rank, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    system = SYSTEMS[name]
    system.start(rank, size)
    answer_requests(Worker(system, rank, size).handle)
    system.stop()


if __name__ == "__main__":
    main()
