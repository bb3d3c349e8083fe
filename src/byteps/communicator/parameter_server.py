"""Rounds through CPU servers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from byteps import _native
from byteps.communicator.interface import LINK_LOST, OK, Buffer
from byteps.control import ControlClient
from byteps.diagnostics import size
from byteps.errors import DeclarationError
from byteps.trace import Trace
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
        trace: is told the names of tensors.
    """

    def __init__(
        self,
        control: ControlClient,
        worker: _native.Worker,
        rank: int,
        credit_bytes: int = 0,
        trace: Trace | None = None,
    ) -> None:
        self.worker = worker
        self._control = control
        self._rank = rank
        self._credit_bytes = credit_bytes
        self._trace = trace or Trace()
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

    def fail(self) -> None:
        """See ``Communicator.fail``."""
        self.worker.fail(LINK_LOST, 0)

    def abandon(self) -> None:
        """See ``Communicator.abandon``."""
        self.worker.abandon()

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
        self._trace.name_tensor(placement.id, spec.name)
        servers = tuple(part.server for part in placement.parts)
        self._tensors[spec.name] = _Tensor(spec, placement.id, placement.generation, servers)

    def _tell_finished(self) -> None:
        ids, self._finished = self._finished, []
        self._control.notify(Finished(ids))
