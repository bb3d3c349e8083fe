"""What every communicator offers, and the memory and rounds that it deals with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from byteps.wire import Message, Retract, TensorSpec

OK, LINK_LOST, DEPARTED, RETRACTED, CLOSED = 1, 2, 3, 4, 5
"""How a round ended: the numbers of the native core."""


class Buffer(msgspec.Struct, frozen=True):
    """Memory of a tensor.

    Attributes:
        address: of the first byte.
        nbytes: length in bytes.
        owner: kept alive until the round that uses the memory is over.
    """

    address: int
    nbytes: int
    owner: object


class Transfer(Protocol):
    """One round of one tensor."""

    @property
    def status(self) -> int:
        """0 while it goes on, then ``OK`` or why it failed."""

    @property
    def peer(self) -> int:
        """The server (``LINK_LOST``) or rank (``DEPARTED``) concerned."""

    @property
    def round(self) -> int:
        """Counts the rounds of this tensor, from 1."""

    @property
    def unresolved(self) -> int:
        """Partitions that are not over yet."""

    def poll(self) -> bool:
        """Whether it is over."""

    def wait(self, timeout_s: float) -> bool:
        """Block until it is over or the time is; returns whether it is over."""


class Communicator(Protocol):
    """Carries out rounds. All methods may be called from any thread.

    Attributes:
        serves_subsets: Whether a tensor may have members, so that the other ranks take no part in it.
    """

    serves_subsets: bool

    def declare(self, specs: Sequence[TensorSpec]) -> None:
        """Make the tensors known, in one message. Raises DeclarationError naming what differs."""

    def submit(
        self, spec: TensorSpec, source: Buffer | None, destination: Buffer | None, priority: int
    ) -> Transfer:
        """Begin the next round of a tensor, declaring it first if need be."""

    def finished(self, spec: TensorSpec) -> None:
        """This rank is done with an ephemeral tensor."""

    def refuse(self, spec: TensorSpec, message: str) -> None:
        """This rank cannot take part in a tensor's next round: it fails on all ranks with this message."""

    def explain(self, name: str) -> str:
        """Why the tensor cannot be used any more."""

    def blame(self, peer: int) -> str:
        """What broke, where a round ended with ``LINK_LOST`` and this peer, and nobody knows more."""

    def missing(self, name: str, timeout_s: float | None = None) -> list[tuple[int, float]]:
        """(rank, seconds since last heard) of those who have not contributed to the round in flight."""

    def traffic(self) -> str:
        """What was sent and received so far, and what may be in flight: for a report."""

    def retract(self, message: Retract) -> None:
        """Ranks disagree about a tensor: its round in flight fails, and the name is free again."""

    def notice(self, message: Message) -> None:
        """Something else that the coordinator says unasked. On the control thread: must not wait."""

    def fail(self) -> None:
        """The job cannot go on: rounds in flight and to come end with ``LINK_LOST``."""

    def abandon(self) -> None:
        """In a forked child: let go of what was inherited without disturbing the parent."""

    def close(self) -> None:
        """Rounds in flight fail; threads and connections end."""
