"""Between all-reduce and what it owns: the names of tensors, and changes of settings."""

from __future__ import annotations

import weakref
from typing import Protocol

from byteps.wire import Knobs, Move, Placement, TensorSpec


class Owner(Protocol):
    """What all-reduce is told."""

    def installed(self, spec: TensorSpec, placement: Placement) -> None:
        """A tensor can be used from now on."""

    def forget(self, tensor: int) -> None:
        """See ``Plane.forget``."""

    def retracted(self, tensor: int) -> None:
        """See ``Plane.retract``."""

    def set_knobs(self, knobs: Knobs) -> None:
        """See ``Tunable.set_knobs``."""

    def cost(self) -> tuple[float, float]:
        """See ``Tunable.cost``."""


class Numbers:
    """Passes on what ``Names`` and ``Changes`` tell; keeps only a weak reference to who owns them.

    Args:
        communicator: Who is to be told.
    """

    def __init__(self, communicator: Owner) -> None:
        self._communicator = weakref.ref(communicator)

    def install(self, spec: TensorSpec, placement: Placement) -> None:
        """See ``Plane.install``."""
        if (communicator := self._communicator()) is not None:
            communicator.installed(spec, placement)

    def forget(self, tensor: int) -> None:
        """See ``Plane.forget``."""
        if (communicator := self._communicator()) is not None:
            communicator.forget(tensor)

    def retract(self, tensor: int) -> None:
        """See ``Plane.retract``."""
        if (communicator := self._communicator()) is not None:
            communicator.retracted(tensor)

    def move(self, move: Move) -> None:
        """See ``Tunable.move``. Tensors are cut as they are sent: nothing has to be known before."""

    def set_knobs(self, knobs: Knobs) -> None:
        """See ``Tunable.set_knobs``."""
        if (communicator := self._communicator()) is not None:
            communicator.set_knobs(knobs)

    def cost(self) -> tuple[float, float]:
        """See ``Tunable.cost``."""
        communicator = self._communicator()
        return (0.0, 0.0) if communicator is None else communicator.cost()
