"""The emulated model for frameworks that are given numpy arrays: see ``model``, whose gradients these are."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.emulated.model import Clock, Gradients, table_length
from benchmarks.emulated.profiles import Layer

Array = npt.NDArray[Any]


class ArrayLayer:
    """What one layer computes.

    Args:
        emulates: What it emulates.
        first: Number of its first parameter in the model.
        table: The gradients of this rank.
        clock: The model's.
    """

    def __init__(self, emulates: Layer, first: int, table: Gradients, clock: Clock) -> None:
        self.emulates = emulates
        self._first = first
        self._table = table
        self._clock = clock
        self._step = 0

    def forward(self, data: Array, *_: object) -> Array:
        """Sleep for the forward pass; the data itself."""
        self._clock.spend(self.emulates.forward_s, time.monotonic())
        return np.asarray(data)

    def backward(self, gradient: Array) -> list[Array]:
        """Sleep for the backward pass; the data's gradient, and those of the layer's parameters."""
        began = time.monotonic()
        sizes = enumerate(self.emulates.elements, self._first)
        found = [self._table.of(number, elements, self._step).numpy() for number, elements in sizes]
        self._step += 1
        self._clock.spend(self.emulates.backward_s, began)
        return [np.asarray(gradient), *found]


def array_layers(rank: int, layers: Sequence[Layer]) -> list[ArrayLayer]:
    """A model's layers in forward order."""
    table, clock = Gradients(rank, table_length(layers)), Clock()
    firsts = np.cumsum([0, *[len(layer.elements) for layer in layers]])
    return [ArrayLayer(layer, int(first), table, clock) for layer, first in zip(layers, firsts, strict=False)]


def tensors(arrays: Sequence[Array]) -> Iterator[torch.Tensor]:
    """Arrays as torch's tensors, to be compared with what is expected."""
    return (torch.from_numpy(np.array(array)) for array in arrays)
