"""Rounds in two steps: the ranks of a node sum by collectives of their own, then each pushes its share.

The first rank of each node streams the order of its ranks' collectives (``node_leader``). What they
sum lies where the engine works, on GPUs for example; only shares pass through host memory, to the servers.
Tensors that are too small for that, or are not sums of floats, go to the servers as without.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from byteps.communicator.all_reduce_rounds import Entry, Round
from byteps.communicator.board import Board
from byteps.communicator.by_name import ByName
from byteps.communicator.interface import CLOSED, DEPARTED, LINK_LOST, OK, RETRACTED, Buffer, Transfer
from byteps.communicator.loop import Loop
from byteps.communicator.node_collectives import NodeCollectives, NodeEngine, NodeMeeting, NodeSum
from byteps.communicator.node_cuts import Cuts, chunk_bytes
from byteps.communicator.node_leader import GATHER, REDUCE, News, NodeLeader, Part, Step
from byteps.communicator.node_shares import Shares
from byteps.communicator.parameter_server import ParameterServer
from byteps.communicator.waiters import Waiters
from byteps.config import Config
from byteps.control import ControlClient
from byteps.dtypes import DType, ReduceOp
from byteps.errors import DeclarationError, ProtocolError
from byteps.wire import AskMissing, Departed, Forward, Message, Missing, TensorSpec, Welcome

_log = logging.getLogger("byteps.communicator")


@dataclass(slots=True)
class _Piece:
    """A part of a tensor that has been reduced and not gathered."""

    entry: Entry
    tensor: int
    summed: NodeSum


class NodeFirst(ByName):
    """Rounds through collectives of each node and then the servers.

    Args:
        control: This worker's connection to the coordinator.
        servers: Sums shares, and what goes without collectives.
        welcome: The job; ranks share nodes in it.
        config: The settings in force.

    Attributes:
        engine: The collectives of this node; None: nothing is summed by collectives.
    """

    serves_subsets = True

    def __init__(
        self, control: ControlClient, servers: ParameterServer, welcome: Welcome, config: Config
    ) -> None:
        super().__init__(servers)
        self.engine: NodeCollectives | None = None
        self._control = control
        self._servers = servers
        self._config = config
        self._rank, self._size = welcome.rank, welcome.size
        self._nodes = tuple(tuple(node) for node in welcome.nodes)
        self._cuts = Cuts(Shares(welcome.nodes, welcome.rank), chunk_bytes(config))
        self._node, self._cross = self._cuts.shares.node, self._cuts.shares.cross
        self._board = Board(control)
        self._leader: NodeLeader | None = None
        self._loop = Loop(f"byteps-node-{welcome.rank}", self._settle, self._break)
        self._waiters = Waiters()
        self._specs: dict[int, tuple[TensorSpec, int]] = {}  # and the rounds begun, by number
        self._rounds: dict[int, Round] = {}
        self._pieces: dict[Part, _Piece] = {}
        self._ready: list[int] = []
        self._arrived: list[tuple[int, int, int, int]] = []
        self._end: tuple[int, int] | None = None
        self._broken = ""
        self._closed = False
        self._closing = threading.Lock()
        servers.on_retract(lambda tensor: self._loop.put(partial(self._retract, tensor)))

    def start(self, engine: NodeEngine) -> None:
        """Meet the other ranks, who do the same, and begin to sum by collectives where they can.

        Raises:
            ConfigError, JoinError: They cannot, and the settings say that they must.
            PeerLost: One of them was lost.
        """
        meeting = NodeMeeting(self._rank, self._size, self._board, self._config, self._nodes, self._node)
        self.engine = engine(meeting)
        if self._node[0] == self._rank:
            sizes, policy = (len(self._node), self._cuts.chunk_bytes), self._config.scheduling
            self._leader = NodeLeader(*sizes, policy, gathers=self._cross)
        self._loop.start()

    def takes(self, spec: TensorSpec) -> bool:
        """Whether a tensor is summed by collectives first. It depends on nothing that ranks may differ in."""
        engine = self.engine
        return (
            engine is not None
            and not spec.members
            and spec.op in (ReduceOp.SUM, ReduceOp.AVERAGE)
            and DType(spec.dtype).is_floating
            and spec.nbytes >= max(engine.least_bytes, 1)
        )

    def device_engine(self, spec: TensorSpec) -> NodeCollectives | None:
        """What sums such a tensor where it lies, outside of host memory."""
        return self.engine if self.engine and self.engine.device != "cpu" and self.takes(spec) else None

    def declare(self, specs: Sequence[TensorSpec]) -> None:
        """See ``Communicator.declare``."""
        super().declare(specs)
        taken = [spec for spec in specs if self.takes(spec)]
        numbers = [(spec, self._servers.number(spec.name)) for spec in taken]
        shares = [
            each for spec, number in numbers if number is not None for each in self._cuts.of(spec, number)
        ]
        if shares:
            self._servers.declare(shares)

    def submit(
        self, spec: TensorSpec, source: Buffer | None, destination: Buffer | None, priority: int
    ) -> Transfer:
        """See ``Communicator.submit``."""
        if not self.takes(spec):
            return self._servers.submit(spec, source, destination, priority)
        return self._servers.begin(spec, self._begin, spec, (source, destination), priority)

    def finished(self, spec: TensorSpec) -> None:
        """See ``Communicator.finished``."""
        number = self._servers.number(spec.name)
        super().finished(spec)
        if number in self._specs:
            self._loop.put(partial(self._forget, number))

    def blame(self, peer: int) -> str:
        """See ``Communicator.blame``."""
        return self._broken or self._servers.blame(peer)

    def traffic(self) -> str:
        """See ``Communicator.traffic``."""
        return self._servers.traffic() + (f"; node sums by {self.engine.name}" if self.engine else "")

    def notice(self, message: Message) -> None:
        """See ``Communicator.notice``."""
        if isinstance(message, Forward) and message.topic == "board":
            self._board.deliver(message.payload)
        elif isinstance(message, Forward):
            self._loop.put(partial(self._forwarded, message))
        elif isinstance(message, AskMissing):
            self._loop.put(partial(self._tell_missing, message))
        else:
            self._servers.notice(message)
            if isinstance(message, Departed):
                self._loop.put(partial(self._depart, message.rank))

    def fail(self) -> None:
        """See ``Communicator.fail``."""
        self._board.fail()
        self._servers.fail()
        if self.engine is not None:
            self.engine.abort()  # the loop may be in a collective
        self._loop.put(partial(self._finish_all, LINK_LOST, 0))

    def abandon(self) -> None:
        """See ``Communicator.abandon``."""
        self._closed = True
        self._servers.abandon()

    def close(self) -> None:
        """See ``Communicator.close``."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
        self._board.fail()
        self._loop.put(partial(self._finish_all, CLOSED, 0))
        self._loop.close()
        if self.engine is not None:
            self.engine.close()
        self._servers.close()
        self._waiters.close()

    def _begin(
        self, tensor: int, spec: TensorSpec, memory: tuple[Buffer | None, Buffer | None], priority: int
    ) -> Round:
        before = self._specs.get(tensor, (spec, 0))[1]
        self._specs[tensor] = spec, before + 1
        one = Round(tensor, spec, self._cuts.form(spec), before + 1, memory, priority)
        self._loop.put(partial(self._submitted, one))
        if self._closed:
            one.resolve(CLOSED)  # nobody may be there to take it
        return one

    # What follows runs on the loop alone, but for ``_push``.

    def _settle(self) -> None:
        self._announce()
        self._lead()

    def _submitted(self, one: Round) -> None:
        if self._end is not None:
            one.resolve(*self._end)
        else:
            self._rounds[one.tensor] = one
            self._ready.append(one.tensor)

    def _announce(self) -> None:
        if not (self._ready or self._arrived):
            return
        news = News(self._ready, self._arrived)
        self._ready, self._arrived = [], []
        if self._leader is not None:
            self._leader.hear(0, news, self._rounds)
        elif self._can_follow:
            self._control.notify(Forward("ready", msgspec.msgpack.encode(news), self._node[0]))

    def _lead(self) -> None:
        """Say what is next, then do it."""
        if self._leader is None or not self._can_follow:
            return
        while steps := self._leader.steps(self._rounds.keys()):
            payload = msgspec.msgpack.encode(steps)
            for rank in self._node[1:]:
                self._control.notify(Forward("order", payload, rank))
            for step in steps:
                self._follow(step)

    @property
    def _can_follow(self) -> bool:
        """Whether collectives can still come about: they can where a rank left in order."""
        return self._end is None or self._end[0] == DEPARTED

    def _forwarded(self, message: Forward) -> None:
        if message.topic == "ready" and self._leader is not None and message.sender in self._node:
            news = msgspec.msgpack.decode(message.payload, type=News)
            self._leader.hear(self._node.index(message.sender), news, self._rounds)
        elif message.topic == "order" and self._leader is None and message.sender == self._node[0]:
            for step in msgspec.msgpack.decode(message.payload, type=list[Step]):
                if self._can_follow:
                    self._follow(step)
        else:
            raise ProtocolError(f"rank {message.sender} sent {message.topic!r}, which it is not to send")

    def _follow(self, step: Step) -> None:
        what, tensor, *rest = step
        if what == GATHER:
            self._gather(self._pieces.pop((tensor, rest[0])))
        else:
            (self._reduce if what == REDUCE else self._fail)(tensor, *rest)

    def _reduce(self, tensor: int, begin: int, nbytes: int) -> None:
        """A rank whose round has failed takes part all the same, or the others would wait for it."""
        assert self.engine is not None
        spec, number = self._specs[tensor]
        one = self._rounds.get(tensor)
        if one is None:
            one = Round(tensor, spec, self._cuts.form(spec), number, (None, None), 0)
            one.resolve(RETRACTED)
        if begin < 0 or nbytes < 1 or begin + nbytes > spec.nbytes:
            raise ProtocolError(
                f"rank {self._node[0]} ordered {nbytes} bytes of tensor {tensor}, which there are not"
            )
        one.started_bytes += nbytes
        entry = Entry(one, begin, nbytes, one.source, one.destination)
        padded = self._cuts.padded(spec, nbytes)
        piece = _Piece(entry, tensor, self.engine.reduce(entry, padded, to_host=self._cross))
        if self._cross:
            self._pieces[tensor, begin] = piece
            self._waiters.do(partial(self._push, piece))
        else:
            self._gather(piece)
            self._reduced((tensor, begin))

    def _reduced(self, part: Part) -> None:
        if self._leader is not None:
            self._leader.reduced(part)

    def _push(self, piece: _Piece) -> None:
        """Sum this rank's share over the nodes. On a thread that may wait."""
        part = piece.tensor, piece.entry.begin
        try:
            piece.summed.wait()
            self._loop.put(partial(self._reduced, part))
            one = piece.entry.round  # shares of one that has failed would wait for other nodes for ever
            status, peer = (one.status, one.peer) if one.poll() else self._sum_shares(piece)
        except DeclarationError:
            status, peer = RETRACTED, 0
        except Exception as error:  # whatever the engine raises: the rounds fail with it
            self._loop.put(partial(self._break, error))
            return
        self._loop.put(lambda: self._arrived.append((*part, status, peer)))

    def _sum_shares(self, piece: _Piece) -> tuple[int, int]:
        """Push this rank's shares of a part. Returns only when nothing uses their memory any more."""
        memory, entry = piece.summed.memory, piece.entry
        flights: list[tuple[TensorSpec, Transfer]] = []
        at = 0
        try:
            for spec in self._cuts.of_part(entry.round.spec, piece.tensor, entry.begin):
                buffer = Buffer(memory.address + at, spec.nbytes, memory.owner)
                flights.append((spec, self._servers.submit(spec, buffer, buffer, entry.round.priority)))
                at += spec.nbytes
        finally:
            for _, transfer in flights:
                transfer.wait(math.inf)
        for spec, transfer in flights:
            if transfer.status != OK:
                return transfer.status, transfer.peer
            if spec.ephemeral:
                self._servers.finished(spec)
        return OK, 0

    def _gather(self, piece: _Piece) -> None:
        assert self.engine is not None
        self.engine.gather(piece.summed)
        one = piece.entry.round
        if one.finish(piece.entry.nbytes) and self._rounds.get(one.tensor) is one:
            del self._rounds[one.tensor]

    def _fail(self, tensor: int, status: int, peer: int) -> None:
        """Some rank of the node will not have its share of the tensor."""
        for part in [part for part in self._pieces if part[0] == tensor]:
            del self._pieces[part]  # ``_push`` has it for as long as an answer may come into its memory
        if (one := self._rounds.pop(tensor, None)) is not None:
            one.resolve(status, peer)

    def _retract(self, tensor: int) -> None:
        """Ranks disagree about a tensor. Shares that are on their way would wait for ever."""
        if tensor not in self._specs:
            return
        spec = self._specs[tensor][0]
        if (one := self._rounds.pop(tensor, None)) is not None:
            one.resolve(RETRACTED)
        if self._leader is not None:
            self._leader.forget(tensor)
        for part in [part for part in self._pieces if part[0] == tensor]:
            for share in self._cuts.of_part(spec, *part):
                with contextlib.suppress(DeclarationError):  # which it always raises
                    self._servers.refuse(share, f"tensor {spec.name!r} was withdrawn")

    def _forget(self, tensor: int) -> None:
        self._specs.pop(tensor, None)
        if self._leader is not None:
            self._leader.forget(tensor)

    def _depart(self, rank: int) -> None:
        """A rank has left in order. It can only have finished what this rank has begun to sum altogether."""
        if self._end is None:
            self._end = DEPARTED, rank
        for tensor, one in list(self._rounds.items()):
            if one.started_bytes < one.spec.nbytes or rank == self._node[0]:
                one.resolve(DEPARTED, rank)
                del self._rounds[tensor]
                if self._leader is not None:
                    self._leader.fail(tensor, DEPARTED, rank)
        if self._leader is not None and rank in self._node:
            self._leader.fail_all(DEPARTED, rank)

    def _break(self, error: Exception) -> None:
        """A collective, or this thread, has failed; the coordinator knows if that is because a rank ended."""
        if self._closed or self._broken:
            return
        name = self.engine.name if self.engine is not None else "the node's engine"
        self._broken = f"{name} failed to sum on this node: {error}"
        _log.debug("%s", self._broken, exc_info=error)
        self._finish_all(LINK_LOST, 0)

    def _finish_all(self, status: int, peer: int) -> None:
        """No round can come about any more."""
        if self._end is None or self._end[0] == DEPARTED or status == CLOSED:
            self._end = status, peer
        if self.engine is not None and (self._rounds or self._broken):
            self.engine.abort()  # what was begun may never be over
        for tensor in list(self._rounds):
            self._fail(tensor, *self._end)
        self._pieces.clear()
        if self._leader is not None:
            self._leader.close()

    def _tell_missing(self, question: AskMissing) -> None:
        late = set(self._servers.worker.missing(question.id))
        if self._leader is not None:
            late |= {self._node[place] for place in self._leader.missing(question.id)}
        self._control.notify(Missing(question.request, sorted(late), [math.inf] * len(late)))
