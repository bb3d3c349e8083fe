"""Rounds that a session has begun: the handle of each, and those that nobody has waited for yet."""

from __future__ import annotations

import logging
import math
import time
from typing import Protocol, TypeVar

from byteps.communicator import Buffer, Transfer
from byteps.config import Config
from byteps.diagnostics import Round
from byteps.errors import StallTimeout
from byteps.trace import Trace
from byteps.wire import TensorSpec

_FEW = 64

_log = logging.getLogger("byteps.session")


class Owner(Protocol):
    """The session of a handle.

    Attributes:
        config: The settings in force.
        trace: Is told of waiting.
    """

    config: Config
    trace: Trace

    def settle(self, handle: Handle, transfer: Transfer) -> None:
        """Account for a round that is over; raise if it failed."""

    def describe_stall(self, handle: Handle, round_number: int, waited_s: float) -> str:
        """What a round has waited for."""


class Handle:
    """A round in flight.

    Attributes:
        name: of the tensor.
        spec: what was declared about it.
        nbytes: its size.
    """

    __slots__ = ("_memory", "_session", "_since_s", "_transfer", "name", "nbytes", "spec")

    def __init__(
        self,
        session: Owner,
        spec: TensorSpec,
        nbytes: int,
        transfer: Transfer,
        memory: tuple[Buffer | None, Buffer | None],
    ) -> None:
        self.name = spec.name
        self.spec = spec
        self.nbytes = nbytes
        self._session = session
        self._since_s = time.monotonic()
        self._transfer = transfer
        self._memory: tuple[Buffer | None, Buffer | None] | None = memory

    def poll(self) -> bool:
        """Whether the result is in place, or the round has failed."""
        return self._transfer.poll()

    def describe(self, late: list[tuple[int, float]] | None) -> Round:
        """The round for a report; ``late``: who has not contributed, if that is known."""
        age_s = time.monotonic() - self._since_s
        flight = self._transfer
        return Round(self.name, flight.round, self.nbytes, age_s, flight.unresolved, late)

    def wait(self) -> None:
        """Block until the result is in place.

        Raises:
            PeerLost, PeerLeft, DeclarationError, SessionClosed, StallTimeout: why there will be none.
        """
        if not self._transfer.poll():
            self._block()
        self._session.settle(self, self._transfer)
        self._memory = None

    def _block(self) -> None:
        trace = self._session.trace
        waiting_since_ns = trace.now_ns()
        config = self._session.config
        start_s = now_s = time.monotonic()
        warn_s = start_s + (config.stall_warning_s or math.inf)
        give_up_s = start_s + (config.stall_timeout_s or math.inf)
        while not self._transfer.wait(min(warn_s, give_up_s) - now_s):
            now_s = time.monotonic()
            text = self._session.describe_stall(self, self._transfer.round, now_s - start_s)
            if now_s >= give_up_s:
                raise StallTimeout(f"{text}; stall_timeout_s is {config.stall_timeout_s:g}")
            _log.warning(text)
            warn_s = now_s + config.stall_warning_s
        trace.span("waiting", self.name, waiting_since_ns)


class _Round(Protocol):
    name: str

    def poll(self) -> bool: ...


class Unfinished(Protocol):
    """Leaves rounds to themselves for a while."""

    def finish_rounds(self) -> None:
        """Take the results of all rounds in flight. Must not raise."""
        ...


RoundT = TypeVar("RoundT", bound=_Round)


class InFlight(dict[str, RoundT]):
    """The last round of each tensor, by the tensor's name. Does no locking."""

    def __init__(self) -> None:
        super().__init__()
        self._look_at = _FEW

    def over(self) -> list[RoundT]:
        """Rounds that are over, for which nobody may ever wait. Looks only once there are twice as many."""
        if len(self) < self._look_at:
            return []
        found = [one for one in list(self.values()) if one.poll()]
        self._look_at = max(_FEW, 2 * (len(self) - len(found)))
        return found
