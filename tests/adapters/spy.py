"""What a session is asked to send."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from byteps.communicator import Buffer, Communicator, Transfer
from byteps.session import Session
from byteps.wire import TensorSpec


class Spy:
    """A communicator that notes what is submitted, in order, with its priority.

    Args:
        session: Whose communicator it stands in for.
        note: Is told each name as well.
    """

    def __init__(self, session: Session, note: Callable[[str], object] = len) -> None:
        self._communicator = session.communicator
        self._note = note
        self.submitted: list[tuple[str, int]] = []
        session.communicator = self

    def submit(
        self, spec: TensorSpec, source: Buffer | None, destination: Buffer | None, priority: int
    ) -> Transfer:
        self.submitted.append((spec.name, priority))
        self._note(spec.name)
        return self._communicator.submit(spec, source, destination, priority)

    def __getattr__(self, name: str) -> Any:
        plain: Communicator = self.__dict__["_communicator"]
        return getattr(plain, name)
