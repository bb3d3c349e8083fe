"""Ranks that have no more data than others: they take part in the others' rounds with nothing to add.

Each rank tells those that are out of data what it submits, and they submit the same, empty. So all ranks go
through the same rounds under the same names, whatever carries them out, and can go on together afterwards.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import re
import threading
from collections.abc import Mapping
from typing import Protocol

import msgspec

from byteps.communicator.interface import Buffer, Communicator
from byteps.control import ControlClient
from byteps.dtypes import ReduceOp
from byteps.errors import DeclarationError, PeerLeft, PeerLost
from byteps.wire import AllOutOfData, Departed, Forward, Message, OutOfData, TensorSpec

_UNNAMED = re.compile(r"(.+?)\.noname\.(\d+)(\..*)?")
_log = logging.getLogger("byteps.session")


class Rounds(Protocol):
    """What this rank can still do for others: its session."""

    rank: int
    communicator: Communicator

    def submit(self, spec: TensorSpec, source: Buffer | None, destination: Buffer | None) -> InFlight:
        """See ``Session.submit``."""

    def skip_names(self, kind: str, number: int) -> None:
        """Unnamed tensors of a kind begin at this number, or later."""


class InFlight(Protocol):
    """A round."""

    def poll(self) -> bool:
        """Whether it is over."""

    def wait(self) -> None:
        """Wait until it is. Raises what went wrong."""


class Submitted(msgspec.Struct, frozen=True, array_like=True):
    """A rank has submitted a tensor for the n-th time."""

    spec: TensorSpec
    times: int


class Absence:
    """Who is out of data, and what all ranks have submitted.

    Args:
        control: This worker's connection to the coordinator.
    """

    def __init__(self, control: ControlClient) -> None:
        self._control = control
        self._lock = threading.Lock()
        self._absent: set[int] = set()
        self._submitted: dict[str, Submitted] = {}
        self._departed: int | None = None
        self._events: queue.SimpleQueue[Message | str] | None = None

    def note(self, spec: TensorSpec) -> None:
        """This rank submits a tensor: those that are out of data have to, too."""
        with self._lock:
            before = self._submitted.get(spec.name)
            now = Submitted(spec, 1 if before is None else before.times + 1)
            self._submitted[spec.name] = now
            if not self._absent:
                return
            absent = [] if self._events is not None else sorted(self._absent)
        for rank in absent:
            self._tell(rank, now)

    def forget(self, spec: TensorSpec) -> None:
        """A round of a tensor that is used once is over here."""
        if _UNNAMED.fullmatch(spec.name):
            self._submitted.pop(spec.name, None)

    def notice(self, message: Message) -> bool:
        """The coordinator says something unasked; whether it is about this. On the control thread."""
        if isinstance(message, OutOfData):
            with self._lock:
                self._absent.add(message.rank)
                known = [] if self._events is not None else list(self._submitted.values())
            for one in known:  # what was submitted before this rank heard of it; too much does no harm
                self._tell(message.rank, one)
            return True
        if isinstance(message, AllOutOfData):
            with self._lock:
                self._absent.clear()
        if isinstance(message, Departed):
            self._departed = message.rank
        about = isinstance(message, AllOutOfData) or (
            isinstance(message, Forward) and message.topic == "round"
        )
        if self._events is not None and (about or isinstance(message, Departed)):
            self._events.put(message)
        return about

    def fail(self, reason: str) -> None:
        """The job cannot go on."""
        if self._events is not None:
            self._events.put(reason)

    def stand_in(self, rounds: Rounds, unnamed: Mapping[str, int]) -> int:
        """Take part in what the others do until they are out of data, too.

        Args:
            rounds: Of this rank.
            unnamed: How many unnamed tensors of each kind this rank has submitted.

        Returns:
            The rank that was last.

        Raises:
            PeerLeft: A rank has left instead.
            PeerLost: The job failed.
        """
        empty = _Empty(rounds, dict(unnamed), self._submitted)
        self._events = queue.SimpleQueue()
        if self._departed is not None:
            self._events.put(Departed(self._departed))
        try:
            self._control.notify(OutOfData())
            while True:
                event = self._events.get()
                if isinstance(event, str):
                    raise PeerLost(event)
                if isinstance(event, Departed):
                    raise PeerLeft(
                        f"rank {rounds.rank} joined, but rank {event.rank} has shut down and will not join"
                    )
                if isinstance(event, AllOutOfData):
                    empty.finish()
                    return event.last
                assert isinstance(event, Forward)
                empty.take_part(msgspec.msgpack.decode(event.payload, type=Submitted))
        finally:
            self._events = None

    def _tell(self, rank: int, submitted: Submitted) -> None:
        if not submitted.spec.members or rank in submitted.spec.members:
            self._control.notify(Forward("round", msgspec.msgpack.encode(submitted), rank))


class _Empty:
    """The rounds of a rank without data."""

    def __init__(self, rounds: Rounds, unnamed: Mapping[str, int], submitted: dict[str, Submitted]) -> None:
        self._rounds = rounds
        self._unnamed = unnamed
        self._submitted = submitted
        self._pending: dict[str, InFlight] = {}
        self._once: set[str] = set()

    def take_part(self, other: Submitted) -> None:
        """Submit what another rank has submitted, unless this rank has."""
        if self._has_submitted(other):
            return
        spec = other.spec
        self._settle(spec.name)  # over at the other rank, so soon here
        try:
            if spec.op == ReduceOp.COPY and spec.root == self._rounds.rank:
                self._submitted[spec.name] = other
                self._rounds.communicator.refuse(
                    spec, f"tensor {spec.name!r}: rank {spec.root} has joined and has nothing to broadcast"
                )
            self._pending[spec.name] = self._rounds.submit(spec, None, None)
        except DeclarationError as error:
            _log.debug("%s", error)
        for name in [name for name, handle in self._pending.items() if handle.poll()]:
            self._settle(name)

    def finish(self) -> None:
        """Wait until all rounds are over."""
        for name in list(self._pending):
            self._settle(name)

    def _has_submitted(self, other: Submitted) -> bool:
        unnamed = _UNNAMED.fullmatch(other.spec.name)
        if unnamed is None:
            own = self._submitted.get(other.spec.name)
            return own is not None and own.times >= other.times
        kind, number = unnamed[1], int(unnamed[2])
        if number < self._unnamed.get(kind, 0) or other.spec.name in self._once:
            return True
        self._once.add(other.spec.name)
        self._rounds.skip_names(kind, number + 1)
        return False

    def _settle(self, name: str) -> None:
        handle = self._pending.pop(name, None)
        if handle is not None:
            with contextlib.suppress(DeclarationError):
                handle.wait()
