"""A model whose layers sleep for as long as they would compute, with gradients that come from a table.

Each layer is one autograd node. Gradients are small whole numbers, and learning rates powers of two, so that
sums are exact in whatever order they are added, and the parameters at the end can be compared bit by bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.emulated.profiles import Layer

# Steps take their gradients from these places of the table by turns: one that is used twice is noticed.
PHASES = 2
PHASE_STRIDE = 1021
LARGEST = 8
LEARNING_RATE = 2.0**-6


class Clock:
    """Sleeps for given times; what one sleep takes too long, the next ones make up for."""

    def __init__(self) -> None:
        self._late_s = 0.0

    def spend(self, seconds: float, began: float) -> None:
        """Be busy for some time.

        Args:
            seconds: How long.
            began: When the work began, by the monotonic clock.
        """
        due = began + seconds - self._late_s
        time.sleep(max(0.0, due - time.monotonic()))  # workload
        self._late_s = time.monotonic() - due


class Gradients:
    """The gradients of one rank.

    Args:
        rank: Whose.
        length: Numbers needed for one step: see ``table_length``.
    """

    def __init__(self, rank: int, length: int) -> None:
        generator = torch.Generator().manual_seed(rank)
        shape = (length + PHASES * PHASE_STRIDE,)
        self._table = torch.randint(
            -LARGEST, LARGEST + 1, shape, generator=generator, dtype=torch.int32
        ).float()

    def of(self, begin: int, elements: int, step: int) -> Tensor:
        """A gradient: a view of the table.

        Args:
            begin: Where it begins; another place for each parameter, so that two cannot be mixed up.
            elements: Its length.
            step: Number of the step.
        """
        begin += step % PHASES * PHASE_STRIDE
        return self._table[begin : begin + elements]


def table_length(layers: Sequence[Layer]) -> int:
    """How many numbers serve all parameters, the i-th of which takes its own from the i-th on."""
    sizes = [elements for layer in layers for elements in layer.elements]
    return max(sizes, default=0) + len(sizes)


class _Node(torch.autograd.Function):
    """A layer's computing. Its gradients are copied within the time that it takes."""

    @staticmethod
    def forward(ctx: Any, data: Tensor, layer: EmulatedLayer, *parameters: Tensor) -> Tensor:
        ctx.layer = layer
        layer.clock.spend(layer.emulates.forward_s, time.monotonic())
        return data.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        began = time.monotonic()
        layer: EmulatedLayer = ctx.layer
        found = layer.gradients()
        layer.clock.spend(layer.emulates.backward_s, began)
        return gradient, None, *found


class EmulatedLayer(torch.nn.Module):
    """One layer with parameters of the right size.

    Args:
        emulates: What it emulates.
        first: Number of its first parameter in the model.
        table: The gradients of this rank.
        clock: The model's.

    Attributes:
        step: Number of the current step.
    """

    def __init__(self, emulates: Layer, first: int, table: Gradients, clock: Clock) -> None:
        super().__init__()
        self.emulates = emulates
        self.clock = clock
        self.step = 0
        self._first = first
        self._table = table
        self._names = [f"weight{number}" for number in range(len(emulates.elements))]
        for name, elements in zip(self._names, emulates.elements, strict=True):
            self.register_parameter(name, torch.nn.Parameter(torch.zeros(elements)))

    def forward(self, data: Tensor) -> Tensor:
        """Read the parameters, then sleep."""
        apply: Callable[..., Tensor] = _Node.apply
        return apply(data, self, *[getattr(self, name) for name in self._names])

    def gradients(self) -> list[Tensor]:
        """New tensors with the gradients of the current step; the next ones are those of the next step."""
        sizes = enumerate(self.emulates.elements, self._first)
        found = [self._table.of(number, elements, self.step).clone() for number, elements in sizes]
        self.step += 1
        return found


class EmulatedModel(torch.nn.Module):
    """A published model's layers.

    Args:
        rank: Of this process.
        layers: In forward order.
    """

    def __init__(self, rank: int, layers: Sequence[Layer]) -> None:
        super().__init__()
        table = Gradients(rank, table_length(layers))
        clock = Clock()
        self.layers = torch.nn.ModuleList()
        first = 0
        for layer in layers:
            self.layers.append(EmulatedLayer(layer, first, table, clock))
            first += len(layer.elements)

    def forward(self) -> Tensor:
        """All layers in turn. The result is a scalar."""
        data = torch.zeros(())
        for layer in self.layers:
            data = layer(data)
        return data


def expected(layers: Sequence[Layer], ranks: int, steps: int) -> Iterator[Tensor]:
    """The parameters after some steps of plain SGD on gradients averaged over all ranks, in order.

    Args:
        layers: Of the model.
        ranks: How many, a power of two.
        steps: From zero on.
    """
    length = table_length(layers)
    total = torch.zeros(length)
    for table in (Gradients(rank, length) for rank in range(ranks)):
        for phase in range(PHASES):
            times = len(range(phase, steps, PHASES))
            total += table.of(0, length, phase) * (times * LEARNING_RATE / ranks)
    sizes = enumerate(elements for layer in layers for elements in layer.elements)
    for first, elements in sizes:
        yield -total[first : first + elements]
