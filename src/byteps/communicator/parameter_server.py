"""Rounds through CPU servers."""

from __future__ import annotations

from collections.abc import Sequence

from byteps import _native
from byteps.communicator.interface import LINK_LOST, Buffer
from byteps.communicator.names import Names
from byteps.control import ControlClient
from byteps.diagnostics import size
from byteps.trace import Trace
from byteps.wire import Message, Placement, Retract, TensorSpec


class _Servers:
    """The native data plane, and which servers sum what."""

    def __init__(self, worker: _native.Worker, trace: Trace) -> None:
        self._worker = worker
        self._trace = trace
        self.of: dict[int, tuple[int, ...]] = {}

    def install(self, spec: TensorSpec, placement: Placement) -> None:
        """See ``Plane.install``."""
        self._worker.declare(
            placement.id, [(part.server, part.lane, part.nbytes) for part in placement.parts]
        )
        self._trace.name_tensor(placement.id, spec.name)
        self.of[placement.id] = tuple(part.server for part in placement.parts)

    def forget(self, tensor: int) -> None:
        """See ``Plane.forget``."""
        self._worker.forget(tensor)
        self.of.pop(tensor, None)

    def retract(self, tensor: int) -> None:
        """See ``Plane.retract``."""
        self._worker.retract(tensor)


class ParameterServer:
    """Rounds through CPU servers.

    Args:
        control: this worker's connection to the coordinator.
        worker: the native data plane, connected to all servers.
        rank: of this worker, for messages.
        credit_bytes: what the worker was given, for reports.
        trace: is told the names of tensors.
    """

    serves_subsets = True

    def __init__(
        self,
        control: ControlClient,
        worker: _native.Worker,
        rank: int,
        credit_bytes: int = 0,
        trace: Trace | None = None,
    ) -> None:
        self.worker = worker
        self._credit_bytes = credit_bytes
        self._servers = _Servers(worker, trace or Trace())
        self._names: Names[_native.Transfer] = Names(control, self._servers, rank)

    def declare(self, specs: Sequence[TensorSpec]) -> None:
        """See ``Communicator.declare``."""
        self._names.declare(specs)

    def submit(
        self, spec: TensorSpec, source: Buffer | None, destination: Buffer | None, priority: int
    ) -> _native.Transfer:
        """See ``Communicator.submit``."""
        given = 0 if source is None else source.address
        wanted = 0 if destination is None else destination.address
        return self._names.begin(spec, lambda tensor: self.worker.submit(tensor, given, wanted, priority))

    def finished(self, spec: TensorSpec) -> None:
        """See ``Communicator.finished``."""
        self._names.finished(spec)

    def refuse(self, spec: TensorSpec, message: str) -> None:
        """See ``Communicator.refuse``."""
        self._names.refuse(spec, message)

    def explain(self, name: str) -> str:
        """See ``Communicator.explain``."""
        return self._names.explain(name)

    def blame(self, peer: int) -> str:
        """See ``Communicator.blame``."""
        return f"the connection to server {peer} broke or fell silent"

    def missing(self, name: str, timeout_s: float | None = None) -> list[tuple[int, float]]:
        """See ``Communicator.missing``."""
        return self._names.missing(name, timeout_s)

    def servers_of(self, name: str) -> tuple[int, ...]:
        """The server of each partition of a declared tensor, in order."""
        number = self._names.number(name)
        return () if number is None else self._servers.of[number]

    def traffic(self) -> str:
        """See ``Communicator.traffic``."""
        return (
            f"{size(self.worker.bytes_sent)} in {self.worker.frames_sent} frames sent, "
            f"{size(self.worker.bytes_received)} received; credit {size(self._credit_bytes)}"
        )

    def retract(self, message: Retract) -> None:
        """See ``Communicator.retract``."""
        self._names.retract(message)

    def notice(self, message: Message) -> None:
        """See ``Communicator.notice``. Servers say all there is to say."""

    def fail(self) -> None:
        """See ``Communicator.fail``."""
        self.worker.fail(LINK_LOST, 0)

    def abandon(self) -> None:
        """See ``Communicator.abandon``."""
        self.worker.abandon()

    def close(self) -> None:
        """See ``Communicator.close``."""
        self.worker.close()
