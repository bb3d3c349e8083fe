"""Notes that the ranks of a job leave each other over the control plane, to find each other otherwise."""

from __future__ import annotations

import threading

import msgspec

from byteps.control import ControlClient
from byteps.errors import JoinError, PeerLost
from byteps.wire import Forward


class _Note(msgspec.Struct, frozen=True, array_like=True):
    key: str
    value: bytes


class Board:
    """Every rank sees every note. A key is written once.

    Args:
        control: This worker's connection to the coordinator.
    """

    def __init__(self, control: ControlClient) -> None:
        self._control = control
        self._changed = threading.Condition()
        self._notes: dict[str, bytes] = {}
        self._failed = False

    def set(self, key: str, value: bytes) -> None:
        """Leave a note.

        Raises:
            PeerLost: The coordinator is gone.
        """
        self._keep(key, value)
        self._control.notify(Forward("board", msgspec.msgpack.encode(_Note(key, value))))

    def get(self, key: str, timeout_s: float) -> bytes:
        """Read a note, waiting for it if need be.

        Raises:
            JoinError: Nobody has left it in time.
            PeerLost: The job cannot go on.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._failed or key in self._notes, timeout_s):
                raise JoinError(f"no rank has left the note {key!r} within {timeout_s:g} s")
            if key not in self._notes:
                raise PeerLost(self._control.lost_peer() or "the job cannot go on")
            return self._notes[key]

    def deliver(self, payload: bytes) -> None:
        """Another rank has left a note."""
        note = msgspec.msgpack.decode(payload, type=_Note)
        self._keep(note.key, note.value)

    def fail(self) -> None:
        """Nobody need wait any longer."""
        with self._changed:
            self._failed = True
            self._changed.notify_all()

    def _keep(self, key: str, value: bytes) -> None:
        with self._changed:
            self._notes[key] = value
            self._changed.notify_all()
