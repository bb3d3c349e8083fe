"""What a session drives: declares tensors and carries out their rounds.

``ParameterServer`` sends them through the servers. ``Alone`` serves a job of one worker: nothing is sent. An
engine for all-reduce fits in beside them.
"""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from byteps import _native
from byteps.control import ControlClient
from byteps.diagnostics import size
from byteps.dtypes import ReduceOp
from byteps.errors import BytePSError, DeclarationError
from byteps.wire import (
    AskMissing,
    Declare,
    Declared,
    Finished,
    Missing,
    Placement,
    Refusal,
    Refuse,
    Retract,
    TensorSpec,
)

_log = logging.getLogger("byteps.communicator")
_FINISHED_BATCH = 64

OK, LINK_LOST, DEPARTED, RETRACTED, CLOSED = 1, 2, 3, 4, 5
"""How a round ended: the numbers of the native core."""


@dataclass(frozen=True, slots=True)
class Buffer:
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
    """Carries out rounds. All methods may be called from any thread."""

    def declare(self, specs: Sequence[TensorSpec]) -> None:
        """Make the tensors known, in one message. Raises DeclarationError naming what differs."""

    def submit(
        self, spec: TensorSpec, source: Buffer | None, destination: Buffer | None, priority: int
    ) -> Transfer:
        """Begin the next round of a tensor, declaring it first if need be."""

    def finished(self, spec: TensorSpec) -> None:
        """This rank is done with an ephemeral tensor."""

    def explain(self, name: str) -> str:
        """Why the tensor cannot be used any more."""

    def missing(self, name: str, timeout_s: float | None = None) -> list[tuple[int, float]]:
        """(rank, seconds since last heard) of those who have not contributed to the round in flight."""

    def traffic(self) -> str:
        """What was sent and received so far, and what may be in flight: for a report."""

    def close(self) -> None:
        """Rounds in flight fail; threads and connections end."""


@dataclass(slots=True)
class _Tensor:
    spec: TensorSpec
    id: int
    generation: int
    servers: tuple[int, ...]
    last: _native.Transfer | None = None


class ParameterServer:
    """Rounds through CPU servers.

    Args:
        control: this worker's connection to the coordinator.
        worker: the native data plane, connected to all servers.
        rank: of this worker, for messages.
        credit_bytes: what the worker was given, for reports.
    """

    def __init__(
        self, control: ControlClient, worker: _native.Worker, rank: int, credit_bytes: int = 0
    ) -> None:
        self.worker = worker
        self._control = control
        self._rank = rank
        self._credit_bytes = credit_bytes
        self._lock = threading.Lock()
        self._tensors: dict[str, _Tensor] = {}
        self._declared: dict[str, int] = {}  # the next generation of each name
        self._finished: list[int] = []
        # Held only for a moment, unlike the other: a retraction must not wait for a declaration in progress.
        self._gate = threading.Lock()
        self._withdrawn: dict[int, str] = {}  # why, by number, until the next use of the name
        self._reasons: dict[str, str] = {}

    def declare(self, specs: Sequence[TensorSpec]) -> None:
        """See ``Communicator.declare``."""
        with self._lock:
            new = [spec for spec in specs if not self._known(spec)]
            if new:
                self._declare(new)

    def submit(
        self, spec: TensorSpec, source: Buffer | None, destination: Buffer | None, priority: int
    ) -> _native.Transfer:
        """See ``Communicator.submit``."""
        with self._lock:
            if not self._known(spec):
                self._declare([spec])
            tensor = self._tensors[spec.name]
            with self._gate:
                if tensor.id not in self._withdrawn:
                    tensor.last = self.worker.submit(
                        tensor.id,
                        0 if source is None else source.address,
                        0 if destination is None else destination.address,
                        priority,
                    )
                    return tensor.last
            raise self._give_up(tensor)

    def finished(self, spec: TensorSpec) -> None:
        """See ``Communicator.finished``. Told to the coordinator in batches: nothing waits for it."""
        with self._lock:
            tensor = self._tensors.pop(spec.name, None)
            if tensor is None:
                return
            # The next use of the name has the same generation; the coordinator tells finished uses apart.
            self._declared[spec.name] = tensor.generation
            if tensor.generation == 0:
                del self._declared[spec.name]
            self.worker.forget(tensor.id)
            self._finished.append(tensor.id)
            if len(self._finished) >= _FINISHED_BATCH:
                self._tell_finished()

    def explain(self, name: str) -> str:
        """See ``Communicator.explain``."""
        return self._reasons.get(name, f"tensor {name!r} was withdrawn")

    def missing(self, name: str, timeout_s: float | None = None) -> list[tuple[int, float]]:
        """See ``Communicator.missing``."""
        tensor = self._tensors.get(name)
        if tensor is None:
            return []
        answer = self._control.call(Missing, lambda request: AskMissing(request, tensor.id), timeout_s)
        return list(zip(answer.ranks, answer.heard, strict=True))

    def servers_of(self, name: str) -> tuple[int, ...]:
        """The server of each partition of a declared tensor, in order."""
        return self._tensors[name].servers

    def traffic(self) -> str:
        """See ``Communicator.traffic``."""
        return (
            f"{size(self.worker.bytes_sent)} in {self.worker.frames_sent} frames sent, "
            f"{size(self.worker.bytes_received)} received; credit {size(self._credit_bytes)}"
        )

    def close(self) -> None:
        """See ``Communicator.close``."""
        self.worker.close()

    def retract(self, message: Retract) -> None:
        """Another rank disagrees about a tensor: its round in flight fails, or its next use does.

        Called on the control thread, so it must not wait for a declaration in progress.
        """
        self._reasons[message.name] = message.message
        with self._gate:
            self._withdrawn[message.id] = message.message
            self.worker.retract(message.id)

    def _known(self, spec: TensorSpec) -> bool:
        """Whether the tensor is declared as ``spec`` says. A different use is refused on all ranks."""
        tensor = self._tensors.get(spec.name)
        if tensor is None:
            return False
        if tensor.id in self._withdrawn:
            failed = tensor.last is not None and tensor.last.status != OK
            error = self._give_up(tensor)
            if failed:  # its handle tells
                return False
            raise error
        if tensor.spec == spec:
            return True
        message = (
            f"tensor {spec.name!r}: rank {self._rank} declared {tensor.spec.describe()} and now uses "
            f"{spec.describe()}; use another name for another shape, dtype or op"
        )
        self.retract(Retract(tensor.id, spec.name, message))
        self._control.notify(Refuse(spec.name, tensor.generation, message))
        raise self._give_up(tensor)

    def _give_up(self, tensor: _Tensor) -> DeclarationError:
        """Forget a withdrawn tensor, so that its name is free again; returns why it was withdrawn."""
        del self._tensors[tensor.spec.name]
        self.worker.forget(tensor.id)
        with self._gate:
            return DeclarationError(self._withdrawn.pop(tensor.id))

    def _declare(self, specs: Sequence[TensorSpec]) -> None:
        if self._finished:
            self._tell_finished()
        generations = [self._declared.get(spec.name, 0) for spec in specs]
        for spec, generation in zip(specs, generations, strict=True):
            self._declared[spec.name] = generation + 1
        answer = self._control.call(Declared, lambda request: Declare(request, list(specs), generations))
        refused = []
        for spec, entry in zip(specs, answer.tensors, strict=True):
            if isinstance(entry, Refusal):
                refused.append(entry.message)
            else:
                self._install(spec, entry)
        if refused:
            raise DeclarationError("; ".join(refused))

    def _install(self, spec: TensorSpec, placement: Placement) -> None:
        self.worker.declare(placement.id, [(part.server, part.lane, part.nbytes) for part in placement.parts])
        servers = tuple(part.server for part in placement.parts)
        self._tensors[spec.name] = _Tensor(spec, placement.id, placement.generation, servers)

    def _tell_finished(self) -> None:
        ids, self._finished = self._finished, []
        self._control.notify(Finished(ids))


class _Done:
    """A round that was over as soon as it began."""

    status, peer, round, unresolved = OK, 0, 1, 0

    def poll(self) -> bool:
        return True

    def wait(self, timeout_s: float) -> bool:
        return True


class Alone:
    """Rounds of a job with one worker: the result is the scaled contribution."""

    def __init__(self) -> None:
        self._specs: dict[str, TensorSpec] = {}

    def declare(self, specs: Sequence[TensorSpec]) -> None:
        """See ``Communicator.declare``."""
        for spec in specs:
            if objection := spec.objection(size=1):
                raise DeclarationError(f"tensor {spec.name!r} ({spec.describe()}) {objection}")
            known = self._specs.setdefault(spec.name, spec)
            if known != spec:
                del self._specs[spec.name]
                raise DeclarationError(
                    f"tensor {spec.name!r} was declared as {known.describe()} and is now used as "
                    f"{spec.describe()}; use another name for another shape, dtype or op"
                )

    def submit(
        self, spec: TensorSpec, source: Buffer | None, destination: Buffer | None, priority: int
    ) -> Transfer:
        """See ``Communicator.submit``."""
        self.declare([spec])
        if destination is not None and spec.nbytes > 0:
            self._reduce(spec, source, destination)
        return _Done()

    def finished(self, spec: TensorSpec) -> None:
        """See ``Communicator.finished``."""
        self._specs.pop(spec.name, None)

    def explain(self, name: str) -> str:
        """See ``Communicator.explain``."""
        return f"tensor {name!r} was withdrawn"

    def missing(self, name: str, timeout_s: float | None = None) -> list[tuple[int, float]]:
        """See ``Communicator.missing``."""
        return []

    def traffic(self) -> str:
        """See ``Communicator.traffic``."""
        return "one worker: nothing is sent"

    def close(self) -> None:
        """See ``Communicator.close``."""

    @staticmethod
    def _reduce(spec: TensorSpec, source: Buffer | None, destination: Buffer) -> None:
        if source is None:
            ctypes.memset(destination.address, 0, destination.nbytes)
        elif spec.op != ReduceOp.COPY and (spec.prescale, spec.postscale) != (1.0, 1.0):
            _native.reduce(
                spec.dtype,
                spec.op,
                [_view(source)],
                _view(destination),
                prescale=spec.prescale,
                postscale=spec.postscale,
            )
        elif source.address != destination.address:
            ctypes.memmove(destination.address, source.address, destination.nbytes)


def _view(buffer: Buffer) -> ctypes.Array[ctypes.c_char]:
    return (ctypes.c_char * buffer.nbytes).from_address(buffer.address)


def check_sizes(spec: TensorSpec, source: Buffer | None, destination: Buffer | None) -> None:
    """Refuse memory that does not fit the declared tensor: native code would run over its end."""
    for buffer in (source, destination):
        if buffer is not None and buffer.nbytes != spec.nbytes:
            raise BytePSError(
                f"tensor {spec.name!r} has {spec.nbytes} bytes, but the buffer has {buffer.nbytes}"
            )
