"""What a communicator leaves to whoever knows its tensors by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from byteps.wire import Retract, TensorSpec


class Named(Protocol):
    """Knows the tensors that this rank has declared. See ``Communicator`` for what each call means."""

    def declare(self, specs: Sequence[TensorSpec]) -> None: ...

    def finished(self, spec: TensorSpec) -> None: ...

    def refuse(self, spec: TensorSpec, message: str) -> None: ...

    def explain(self, name: str) -> str: ...

    def missing(self, name: str, timeout_s: float | None) -> list[tuple[int, float]]: ...

    def retract(self, message: Retract) -> None: ...


class ByName:
    """The part of ``Communicator`` that is about names.

    Args:
        tensors: Is asked.
    """

    def __init__(self, tensors: Named) -> None:
        self._tensors_by_name = tensors

    def declare(self, specs: Sequence[TensorSpec]) -> None:
        """See ``Communicator.declare``."""
        self._tensors_by_name.declare(specs)

    def finished(self, spec: TensorSpec) -> None:
        """See ``Communicator.finished``."""
        self._tensors_by_name.finished(spec)

    def refuse(self, spec: TensorSpec, message: str) -> None:
        """See ``Communicator.refuse``."""
        self._tensors_by_name.refuse(spec, message)

    def explain(self, name: str) -> str:
        """See ``Communicator.explain``."""
        return self._tensors_by_name.explain(name)

    def missing(self, name: str, timeout_s: float | None = None) -> list[tuple[int, float]]:
        """See ``Communicator.missing``."""
        return self._tensors_by_name.missing(name, timeout_s)

    def retract(self, message: Retract) -> None:
        """See ``Communicator.retract``."""
        self._tensors_by_name.retract(message)
