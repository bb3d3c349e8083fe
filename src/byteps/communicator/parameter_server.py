"""Rounds through CPU servers."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Concatenate, TypeAlias

from byteps import _native
from byteps.communicator.by_name import ByName
from byteps.communicator.changes import Changes
from byteps.communicator.interface import LINK_LOST, Buffer, Transfer
from byteps.communicator.names import How, Names
from byteps.control import ControlClient
from byteps.diagnostics import count, size
from byteps.hierarchy import plan
from byteps.trace import Trace
from byteps.wire import (
    AskMissing,
    Departed,
    Knobs,
    Message,
    Missing,
    Move,
    Placement,
    TensorSpec,
    Welcome,
)

_NodePlan: TypeAlias = tuple[int, int, float, float, int, bool, list[int], int, list[int]]


class _Servers:
    """The native data plane, and which servers sum what."""

    def __init__(self, worker: _native.Worker, welcome: Welcome, trace: Trace, credit_bytes: int) -> None:
        self._worker = worker
        self._trace = trace
        self.number = len(welcome.servers)
        self._rank = welcome.rank
        self._nodes = welcome.nodes
        self.node = next((node for node in welcome.nodes if welcome.rank in node), [])
        self._specs: dict[int, TensorSpec] = {}
        self.of: dict[int, tuple[int, ...]] = {}
        self.credit_bytes = self._own_credit_bytes = credit_bytes
        self._lanes = welcome.settings.lanes
        self.lanes_used = self._lanes - welcome.settings.spare_lanes
        self._share_credit()
        self.on_retract: Callable[[int], None] = lambda tensor: None

    def install(self, spec: TensorSpec, placement: Placement) -> None:
        """See ``Plane.install``."""
        parts = [(part.server, part.lane, part.nbytes) for part in placement.parts]
        self._install(placement.id, spec, parts)

    def move(self, move: Move) -> None:
        """See ``Tunable.move``."""
        spec = self._specs.get(move.old)
        if spec is not None:
            self._install(move.new, spec, move.parts)

    def set_knobs(self, knobs: Knobs) -> None:
        """See ``Tunable.set_knobs``."""
        self.credit_bytes = knobs.credit_bytes or self._own_credit_bytes
        self._share_credit()
        self._worker.set_chunk(knobs.chunk_bytes)

    def cost(self) -> tuple[float, float]:
        """See ``Tunable.cost``. What a partition costs is not measured."""
        return self._worker.bytes_per_second, 0.0

    def forget(self, tensor: int) -> None:
        """See ``Plane.forget``."""
        self._worker.forget(tensor)
        self._specs.pop(tensor, None)
        self.of.pop(tensor, None)

    def retract(self, tensor: int) -> None:
        """See ``Plane.retract``."""
        self._worker.retract(tensor)
        self.on_retract(tensor)

    def _install(self, tensor: int, spec: TensorSpec, parts: list[tuple[int, int, int]]) -> None:
        lanes = max((lane + 1 for _, lane, _ in parts), default=0)
        if lanes > self.lanes_used:
            self.lanes_used = lanes
            self._share_credit()
        self._worker.declare(tensor, parts, self._plan(spec))
        self._trace.name_tensor(tensor, spec.name)
        self._specs[tensor] = spec
        self.of[tensor] = tuple(server for server, _, _ in parts)

    def _share_credit(self) -> None:
        """The lanes share what the worker gets evenly: the part of those that are not used yet is added."""
        self._worker.set_credit(self.credit_bytes * self._lanes // self.lanes_used)

    def _plan(self, spec: TensorSpec) -> _NodePlan | None:
        """What native code is to know of the ranks that sum with this one first, if there are such."""
        shared = plan(spec, self._nodes)
        if shared is None:
            return None
        group = next(group for group in shared.groups if self._rank in group)
        what = shared.node
        scales = (what.prescale, what.postscale, what.divisor)
        places = [self.node.index(rank) for rank in group]
        return (
            spec.dtype,
            what.op,
            *scales,
            shared.server is not None,
            places,
            shared.first,
            list(spec.members),
        )


class ParameterServer(ByName):
    """Rounds through CPU servers.

    Args:
        control: this worker's connection to the coordinator.
        worker: the native data plane, connected to all servers.
        welcome: the job.
        credit_bytes: what the worker was given, for reports.
        trace: is told the names of tensors.

    Attributes:
        nodes: Ranks that sum together before anything leaves their node; empty: none do.
    """

    serves_subsets = True

    def __init__(
        self,
        control: ControlClient,
        worker: _native.Worker,
        welcome: Welcome,
        credit_bytes: int = 0,
        trace: Trace | None = None,
    ) -> None:
        self.worker = worker
        self.nodes = welcome.nodes
        self._control = control
        self._servers = _Servers(worker, welcome, trace or Trace(), credit_bytes)
        self._changes = Changes.of(welcome, control, self._servers)
        self._names: Names[Transfer] = Names(control, self._servers, welcome.rank, self._changes)
        super().__init__(self._names)

    def submit(
        self, spec: TensorSpec, source: Buffer | None, destination: Buffer | None, priority: int
    ) -> Transfer:
        """See ``Communicator.submit``."""
        given = 0 if source is None else source.address
        wanted = 0 if destination is None else destination.address
        return self._names.begin(spec, self.worker.submit, given, wanted, priority)

    def begin(
        self,
        spec: TensorSpec,
        begin: Callable[Concatenate[int, How], Transfer],
        *how: How.args,
        **more: How.kwargs,
    ) -> Transfer:
        """Begin a round that ``begin`` carries out: see ``Names.begin``. Raises as ``submit``."""
        return self._names.begin(spec, begin, *how, **more)

    def blame(self, peer: int) -> str:
        """See ``Communicator.blame``."""
        neighbour = peer - self._servers.number
        if neighbour >= 0:
            rank = self._servers.node[neighbour]
            return f"the connection to rank {rank}, which shares this node, broke or fell silent"
        return f"the connection to server {peer} broke or fell silent"

    def on_retract(self, told: Callable[[int], None]) -> None:
        """Have somebody told the numbers of tensors whose round in flight ends with ``RETRACTED``."""
        self._servers.on_retract = told

    def number(self, name: str) -> int | None:
        """The number of a declared tensor."""
        return self._names.number(name)

    def servers_of(self, name: str) -> tuple[int, ...]:
        """The server of each partition of a declared tensor, in order."""
        number = self._names.number(name)
        return () if number is None else self._servers.of[number]

    @property
    def connections(self) -> int:
        """Over how many connections to each server tensors travel."""
        return self._servers.lanes_used

    def traffic(self) -> str:
        """See ``Communicator.traffic``."""
        return (
            f"{size(self.worker.bytes_sent)} in {self.worker.frames_sent} frames sent, "
            f"{size(self.worker.bytes_received)} received; credit {size(self._servers.credit_bytes)} "
            f"over {count(self.connections, 'connection')}"
        )

    def notice(self, message: Message) -> None:
        """See ``Communicator.notice``. Of rounds, servers say the rest of what there is to say."""
        if isinstance(message, Departed):
            self.worker.depart(message.rank)
        if isinstance(message, AskMissing):
            late = self.worker.missing(message.id)
            self._control.notify(Missing(message.request, late, [inf] * len(late)))
        if self._changes is not None:
            self._changes.notice(message)

    def fail(self) -> None:
        """See ``Communicator.fail``."""
        self._stop_changes()
        self.worker.fail(LINK_LOST, 0)

    def abandon(self) -> None:
        """See ``Communicator.abandon``."""
        self.worker.abandon()

    def close(self) -> None:
        """See ``Communicator.close``."""
        self._stop_changes()
        self.worker.close()

    def _stop_changes(self) -> None:
        if self._changes is not None:
            self._changes.fail()
