"""What members of a running job ask for: declarations, barriers, and who is late."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from byteps.coordinator.barrier import Barriers
from byteps.coordinator.declarations import Declarations, Outgoing, ToRank, ToServer
from byteps.coordinator.inquiries import Inquiries
from byteps.coordinator.retuning import Retuning
from byteps.coordinator.spreading import Spreading
from byteps.coordinator.tensors import Tensor, TensorTable
from byteps.coordinator.tuning import Defer, Tuning, World
from byteps.errors import ProtocolError
from byteps.hierarchy import plan
from byteps.placement import Placer, Unplaced
from byteps.wire import (
    Agreed,
    AllOutOfData,
    AskMissing,
    Barrier,
    Declare,
    Finished,
    Forward,
    Installed,
    Knobs,
    Measured,
    Message,
    Missing,
    OutOfData,
    Refuse,
    Taken,
    TuningSettings,
)

LEADER = 0
"""The rank that knows who has contributed to what where there are no servers."""


class Requests:
    """Answers requests by rank and server number.

    Args:
        size: Number of workers.
        placer: Where tensors are placed.
        silence_s: Seconds since a rank's last heartbeat; infinite if it has none.
        partition_bytes: Of tensors' partitions to begin with; 0: as the placer has it.
        nodes: Ranks that sum together before anything leaves their node; see ``hierarchy``.
    """

    def __init__(
        self,
        size: int,
        placer: Placer | Unplaced,
        silence_s: Callable[[int], float],
        partition_bytes: int = 0,
        nodes: Sequence[Sequence[int]] = (),
    ) -> None:
        self._size = size
        self._nodes = nodes
        self._departed: set[int] = set()
        self._has_servers = isinstance(placer, Placer)
        self._table = TensorTable(size, placer, partition_bytes)
        self._declarations = Declarations(self._table)
        self._barriers = Barriers(size)
        self._inquiries = Inquiries(silence_s)
        self._retuning: Retuning | None = None
        self._tuning: Tuning | None = None
        self._spreading: Spreading | None = None
        self._out_of_data: set[int] = set()

    def tune(self, settings: TuningSettings, servers: int, folder: Path, defer: Defer) -> None:
        """Search for better settings while training goes on. See ``Tuning``."""
        retuning = self._retunes(settings.start)
        self._tuning = Tuning(settings, World(self._size, servers), self._table, retuning, folder, defer)

    def spread(self, lanes: int, rate: float, start: Knobs) -> None:
        """Have tensors travel over so many lanes once that is worth it. See ``Spreading``."""
        self._spreading = Spreading(self._retunes(start), lanes, rate)

    def _retunes(self, start: Knobs) -> Retuning:
        """What carries out changes, of whatever kind: one after another."""
        if self._retuning is None:
            self._retuning = Retuning(self._size, self._table, self._declarations, start, self._has_servers)
        return self._retuning

    @property
    def barrier_missing(self) -> list[int]:
        """Ranks that others wait for at a barrier."""
        return self._barriers.missing

    def from_worker(self, rank: int, message: Message) -> list[Outgoing]:
        """A worker asks for something.

        Raises:
            ProtocolError: No correct worker sends this.
        """
        match message:
            case Declare():
                return self._declarations.declare(rank, message)
            case Refuse():
                return self._declarations.refuse(rank, message)
            case Finished():
                return self._declarations.finished(rank, message)
            case Barrier():
                return [ToRank(*answer) for answer in self._barriers.arrive(rank, message.request)]
            case AskMissing():
                return self._ask_missing(rank, message)
            case Missing():
                return self._answered("worker", rank, message)
            case Forward():
                return self._forward(rank, message)
            case Measured() if rank == LEADER and self._retuning is not None:
                return self._measured(self._retuning, message)
            case Agreed() if self._retuning is not None:
                return self._retuning.agreed(rank, message)
            case Taken() if self._retuning is not None:
                return self._retuning.taken(rank, message)
            case OutOfData():
                return self._joined(rank)
        raise ProtocolError(f"{type(message).__name__} is not for a worker to send")

    def from_server(self, number: int, message: Message) -> list[Outgoing]:
        """A server answers.

        Raises:
            ProtocolError: No correct server sends this.
        """
        match message:
            case Installed():
                return self._declarations.installed(number, message)
            case Missing():
                return self._answered("server", number, message)
        raise ProtocolError(f"{type(message).__name__} is not for a server to send")

    def depart(self, rank: int) -> list[Outgoing]:
        """A rank left in order."""
        self._departed.add(rank)
        answers: list[Outgoing] = [ToRank(*answer) for answer in self._barriers.depart(rank)]
        answers += [ToRank(*answer) for answer in self._inquiries.depart(rank)]
        answers += self._declarations.depart(rank)
        return answers + (self._retuning.depart(rank) if self._retuning else [])

    def _ask_missing(self, rank: int, message: AskMissing) -> list[Outgoing]:
        """Pass the question on; for a tensor that no server sums any part of, there is nobody to wait for."""
        tensor = self._table.get(message.id)
        servers = sorted(tensor.servers) if tensor and self._has_servers else []
        ranks = [] if tensor is None else self._neighbours(tensor) if self._has_servers else [LEADER]
        if not servers and not ranks:
            return [ToRank(rank, Missing(message.request, [], []))]
        members = [("server", one) for one in servers] + [("worker", one) for one in ranks]
        question = self._inquiries.ask(rank, message, members)
        return [ToServer(one, question) for one in servers] + [ToRank(one, question) for one in ranks]

    def _neighbours(self, tensor: Tensor) -> list[int]:
        """Ranks that sum with others of their node first, and may know whom they wait for."""
        shared = plan(tensor.spec, self._nodes) if tensor.spec else None
        groups = shared.groups if shared else ()
        return [rank for group in groups if len(group) > 1 for rank in group if rank not in self._departed]

    def _measured(self, retuning: Retuning, message: Measured) -> list[Outgoing]:
        """Rank 0 has measured what was asked for. A report on an older change is passed over."""
        spreading = self._spreading
        if message.number != retuning.number:
            return []
        if spreading is not None and not spreading.over and spreading.is_due(message.rate):
            return spreading.spread(message)
        if self._tuning is not None:
            return self._tuning.measured(message)
        return spreading.watch() if spreading is not None and not spreading.over else []

    def _answered(self, role: str, number: int, message: Missing) -> list[Outgoing]:
        return [ToRank(*answer) for answer in self._inquiries.answered(role, number, message)]

    def _joined(self, rank: int) -> list[Outgoing]:
        """A rank is out of data: the others tell it what they submit, until they are, too."""
        if rank in self._out_of_data:
            raise ProtocolError(f"rank {rank} is out of data already")
        self._out_of_data.add(rank)
        if len(self._out_of_data) < self._size:
            return [ToRank(other, OutOfData(rank)) for other in range(self._size) if other != rank]
        self._out_of_data.clear()
        return [ToRank(other, AllOutOfData(rank)) for other in range(self._size)]

    def _forward(self, rank: int, message: Forward) -> list[Outgoing]:
        """Pass a message on to the rank that it is for, or to all others."""
        if message.to >= self._size:
            raise ProtocolError(f"rank {rank} sent a message to rank {message.to}, which there is not")
        receivers = [message.to] if message.to >= 0 else [one for one in range(self._size) if one != rank]
        passed = Forward(message.topic, message.payload, message.to, rank)
        return [ToRank(receiver, passed) for receiver in receivers]
