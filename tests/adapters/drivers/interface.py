"""What the contract suite asks of a framework: its adapter's calls on numpy arrays, and a small training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from byteps.session import Session

Array = NDArray[Any]
FEATURES, HIDDEN, OUTPUTS, BATCH = 5, 7, 3, 4
LEARNING_RATE = 0.1


class Driver(Protocol):
    """One framework.

    Attributes:
        module: The adapter.
        dtypes: What its tensors can be made of and servers can reduce.
        alternatives: Ways to call push_pull, such as in place or within a compiled function.
        gradients_in_order: What the names of a training's gradients end with, first layer first.
    """

    module: ModuleType
    dtypes: Sequence[str]
    alternatives: Mapping[str, Callable[..., Array]]
    gradients_in_order: Sequence[str]

    def together(self, session: Session, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Sum several arrays, all in flight before the first is waited for; started in the given order."""
        ...

    def broadcast(self, session: Session, array: Array, root: int, name: str | None) -> Array:
        """The root's array."""
        ...

    def broadcast_variables(self, session: Session, arrays: Sequence[Array], root: int) -> list[Array]:
        """Make variables of the arrays, overwrite them with the root's, and return their values."""
        ...

    def gradient(self, session: Session, array: Array, weights: Array, **options: Any) -> Array:
        """The gradient of sum(weights * allreduce(array)) with respect to the array."""
        ...

    def train(
        self, session: Session | None, batches: Sequence[tuple[Array, Array]], **options: Any
    ) -> list[Array]:
        """Parameters after SGD from ``initial_parameters()``, through the adapter if there is a session."""
        ...

    def unsendable(self) -> Mapping[str, tuple[object, type[Exception], str]]:
        """What cannot be sent, with the error: by a word."""
        ...


def initial_parameters() -> list[Array]:
    """Weights and biases of two layers with a tanh between them, float32; the same each time."""
    generator = np.random.default_rng(7)
    shapes = [(FEATURES, HIDDEN), (HIDDEN,), (HIDDEN, OUTPUTS), (OUTPUTS,)]
    return [generator.normal(size=shape).astype(np.float32) for shape in shapes]


def batch(rank: int, step: int) -> tuple[Array, Array]:
    """Inputs [BATCH, FEATURES] and targets [BATCH, OUTPUTS] of one rank, float32."""
    generator = np.random.default_rng(1000 * step + rank)
    made = [generator.normal(size=(BATCH, width)).astype(np.float32) for width in (FEATURES, OUTPUTS)]
    return made[0], made[1]


def joined(size: int, step: int) -> tuple[Array, Array]:
    """The batches of all ranks as one."""
    parts = [batch(rank, step) for rank in range(size)]
    return np.concatenate([one for one, _ in parts]), np.concatenate([other for _, other in parts])
