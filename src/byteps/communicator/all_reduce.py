"""Rounds by collectives of the workers among themselves, in one order on all ranks.

Each rank announces to rank 0 what it has submitted; rank 0 (``all_reduce_leader``) streams the order. All of
a rank's decisions are made on one thread, which takes what happens from a queue: no lock is held while
something is waited for.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from byteps.communicator.all_reduce_forms import check_for_all, form_of
from byteps.communicator.all_reduce_leader import Leader, Piece
from byteps.communicator.all_reduce_numbers import Numbers
from byteps.communicator.all_reduce_rounds import Batch, Entry, Round
from byteps.communicator.all_reduce_sizes import FIRST_BYTES, Sizes
from byteps.communicator.board import Board
from byteps.communicator.by_name import ByName
from byteps.communicator.changes import Changes
from byteps.communicator.collectives import Collectives, Engine, Meeting, latency_s
from byteps.communicator.interface import CLOSED, DEPARTED, LINK_LOST, OK, RETRACTED, Buffer
from byteps.communicator.loop import Loop
from byteps.communicator.names import Names
from byteps.config import Config
from byteps.control import ControlClient
from byteps.diagnostics import size as in_words
from byteps.errors import ProtocolError
from byteps.trace import Trace
from byteps.wire import (
    AskMissing,
    Departed,
    Forward,
    Knobs,
    Message,
    Missing,
    Placement,
    TensorSpec,
    Welcome,
)

LEADER = 0
_BETWEEN_S = 0.001
"""From one announcement to the next. Each costs the coordinator and rank 0 some tenths of that."""
_VERDICT_S = 2.0
"""How long a failed collective waits for the coordinator to say which rank was lost, or left."""

_log = logging.getLogger("byteps.communicator")


@dataclass(slots=True)
class _End:
    """Why no round can come about any more."""

    status: int
    peer: int


class AllReduce(ByName):
    """Rounds by an engine's collectives.

    Args:
        control: This worker's connection to the coordinator.
        welcome: The job.
        config: The settings in force.
        on_close: Called when this worker has left.
        trace: Is told the names of tensors, and when their collectives began and ended.
    """

    serves_subsets = False

    def __init__(
        self,
        control: ControlClient,
        welcome: Welcome,
        config: Config,
        on_close: Callable[[], None] = lambda: None,
        trace: Trace | None = None,
    ) -> None:
        self._control = control
        self._rank, self._size = welcome.rank, welcome.size
        self._config = config
        self._on_close = on_close
        self._trace = trace or Trace()
        self._board = Board(control)
        numbers = Numbers(self)
        self._changes = Changes.of(welcome, control, numbers)
        self._names: Names[Round] = Names(control, numbers, self._rank, self._changes)
        super().__init__(self._names)
        fixed_bytes = FIRST_BYTES if config.deterministic else 0  # where a sum is cut changes its rounding
        self._sizes = Sizes(config.collective_bytes or fixed_bytes, config.credit_bytes)
        self._specs: dict[int, tuple[TensorSpec, int]] = {}  # and the rounds begun, by number
        self._engine: Collectives | None = None
        self._leader: Leader | None = None
        self._loop = Loop("byteps-all-reduce", self._go_on, self._break, self._pause_s)
        self._rounds: dict[int, Round] = {}
        self._ready: list[int] = []
        self._announced_s = -math.inf
        self._end: _End | None = None
        self._broken = ""
        self._closed = False
        self._collectives = self._moved_bytes = 0

    def start(self, engine: Engine) -> None:
        """Meet the other ranks, who do the same, and begin to carry out rounds.

        Raises:
            JoinError: The engine cannot reach them.
            PeerLost: One of them was lost.
        """
        self._engine = engine(Meeting(self._rank, self._size, self._board, self._config))
        self._sizes.latency_s = latency_s(self._engine, self._config.join_timeout_s)
        if self._rank == LEADER:
            config = self._config
            self._leader = Leader(
                self._size,
                self._engine.concurrency,
                self._sizes,
                config.scheduling,
                fuses=not config.deterministic,
            )
        self._loop.start()

    def declare(self, specs: Sequence[TensorSpec]) -> None:
        """See ``Communicator.declare``."""
        check_for_all(specs)
        super().declare(specs)

    def submit(
        self, spec: TensorSpec, source: Buffer | None, destination: Buffer | None, priority: int
    ) -> Round:
        """See ``Communicator.submit``."""
        check_for_all([spec])
        return self._names.begin(spec, self._begin, (source, destination), priority)

    def blame(self, peer: int) -> str:
        """See ``Communicator.blame``."""
        return self._broken or "the job cannot go on"

    def traffic(self) -> str:
        """See ``Communicator.traffic``."""
        sizes, engine = self._sizes, self._engine
        return (
            f"{in_words(self._moved_bytes)} in {self._collectives} collectives of "
            f"{engine.name if engine else 'no engine'}; latency {1e3 * sizes.latency_s:.2f} ms, rate "
            f"{sizes.rate / 1e6:.0f} MB/s, size {in_words(sizes.collective_bytes)}, credit "
            f"{in_words(sizes.credit_bytes)}"
        )

    def notice(self, message: Message) -> None:
        """See ``Communicator.notice``."""
        if isinstance(message, Forward) and message.topic == "board":
            self._board.deliver(message.payload)
        elif isinstance(message, Forward):
            self._loop.put(partial(self._forwarded, message))
        elif isinstance(message, Departed):
            self._loop.put(partial(self._finish_all, DEPARTED, message.rank))
        elif isinstance(message, AskMissing):
            self._loop.put(partial(self._tell_missing, message))
        elif self._changes is not None:
            self._changes.notice(message)

    def fail(self) -> None:
        """See ``Communicator.fail``."""
        self._board.fail()
        self._loop.put(partial(self._finish_all, LINK_LOST, 0))

    def abandon(self) -> None:
        """See ``Communicator.abandon``. The thread does not exist in the child."""
        self._closed = True

    def close(self) -> None:
        """See ``Communicator.close``."""
        if self._closed:
            return
        self._closed = True
        self._board.fail()
        self._loop.put(partial(self._finish_all, CLOSED, 0))
        self._loop.close()
        if self._engine is not None:
            self._engine.close()
        self._on_close()

    def installed(self, spec: TensorSpec, placement: Placement) -> None:
        """A tensor can be used from now on."""
        self._trace.name_tensor(placement.id, spec.name)
        self._specs[placement.id] = spec, 0
        self._sizes.step_bytes += 0 if spec.ephemeral else spec.nbytes

    def set_knobs(self, knobs: Knobs) -> None:
        """See ``Tunable.set_knobs``."""
        self._loop.put(partial(self._resize, knobs))

    def cost(self) -> tuple[float, float]:
        """See ``Tunable.cost``."""
        return self._sizes.rate, self._sizes.latency_s

    def forget(self, tensor: int) -> None:
        """See ``Plane.forget``."""
        known = self._specs.pop(tensor, None)
        if known is not None and not known[0].ephemeral:
            self._sizes.step_bytes -= known[0].nbytes
        self._loop.put(partial(self._forget, tensor))

    def retracted(self, tensor: int) -> None:
        """See ``Plane.retract``."""
        self._loop.put(partial(self._retract, tensor))

    def _begin(self, tensor: int, memory: tuple[Buffer | None, Buffer | None], priority: int) -> Round:
        spec, before = self._specs[tensor]
        self._specs[tensor] = spec, before + 1
        assert self._engine is not None, "start() comes first"
        form = form_of(spec, self._size, self._engine.dtypes)
        one = Round(tensor, spec, form, before + 1, memory, priority)
        self._loop.put(partial(self._submitted, one))
        if self._closed:  # nobody may be there to take it from the queue
            one.resolve(CLOSED)
        return one

    # What follows runs on the thread alone.

    def _go_on(self) -> None:
        """What has come meanwhile is taken together: announced in one message, fused where possible."""
        self._announce()
        self._lead()

    def _pause_s(self) -> float:
        """For how long there may be more to announce: one alone is announced at once, many are together."""
        if self._leader is not None or not self._ready:
            return 0.0
        return self._announced_s + _BETWEEN_S - time.monotonic()

    def _resize(self, knobs: Knobs) -> None:
        self._sizes.fix(knobs.partition_bytes, knobs.credit_bytes, knobs.fusion_bytes)
        if self._leader is not None:
            self._leader.resize()

    def _submitted(self, one: Round) -> None:
        if self._end is not None:
            one.resolve(self._end.status, self._end.peer)
        elif one.spec.nbytes == 0:
            one.resolve(OK)
        else:
            self._rounds[one.tensor] = one
            self._ready.append(one.tensor)

    def _announce(self) -> None:
        if not self._ready:
            return
        ready, self._ready = self._ready, []
        if self._leader is None:
            self._announced_s = time.monotonic()
            self._control.notify(Forward("ready", msgspec.msgpack.encode(ready), LEADER))
        else:
            self._take_note(LEADER, ready)

    def _take_note(self, rank: int, tensors: Sequence[int]) -> None:
        """A rank has announced tensors."""
        assert self._leader is not None
        for tensor in tensors:
            if self._leader.announced(rank, tensor):
                self._leader.schedule(self._rounds[tensor])

    def _lead(self) -> None:
        """Give out the order for whatever there is credit for, then follow it."""
        if self._leader is None or self._end is not None or self._broken:
            return
        batches: list[tuple[int, list[Piece]]] = []
        while (batch := self._leader.next()) is not None:
            batches.append(batch)
        if not batches:
            return
        if self._size > 1:
            self._control.notify(Forward("order", msgspec.msgpack.encode([pieces for _, pieces in batches])))
        for number, pieces in batches:
            self._follow(pieces, number)

    def _forwarded(self, message: Forward) -> None:
        if message.topic == "ready" and self._leader is not None:
            self._take_note(message.sender, msgspec.msgpack.decode(message.payload, type=list[int]))
        elif message.topic == "order" and self._leader is None and message.sender == LEADER:
            for pieces in msgspec.msgpack.decode(message.payload, type=list[list[Piece]]):
                if self._end is None and not self._broken:
                    self._follow(pieces, -1)
        else:
            raise ProtocolError(f"rank {message.sender} sent {message.topic!r}, which it is not to send")

    def _follow(self, pieces: Sequence[Piece], number: int) -> None:
        """Start a collective; ``number`` is the leader's own."""
        assert self._engine is not None
        batch = Batch([self._entry(*piece) for piece in pieces], self._rank)
        done = partial(self._ended, batch, number, self._trace.now_ns() if self._trace.on else 0)
        self._engine.start(batch.form.collective, batch.memory, done)

    def _entry(self, tensor: int, begin: int, nbytes: int) -> Entry:
        one = self._rounds.get(tensor)
        if one is None or begin < 0 or nbytes < 1 or begin + nbytes > one.spec.nbytes:
            raise ProtocolError(f"rank 0 ordered {nbytes} bytes of tensor {tensor}, which there are not")
        one.started_bytes += nbytes
        return Entry(one, begin, nbytes, one.source, one.destination)

    def _ended(self, batch: Batch, number: int, begun_ns: int, error: Exception | None) -> None:
        """A collective is over. On a thread of the engine."""
        self._loop.put(partial(self._settle, batch, number, begun_ns, error))

    def _settle(self, batch: Batch, number: int, begun_ns: int, error: Exception | None) -> None:
        if error is not None:
            self._break(error)
            return
        self._collectives += 1
        self._moved_bytes += batch.nbytes
        for one, nbytes in batch.scatter():
            if begun_ns:
                self._trace.span("collective", one.spec.name, begun_ns)
            if one.finish(nbytes) and self._rounds.get(one.tensor) is one:
                del self._rounds[one.tensor]
        if self._leader is not None:
            self._leader.finished(number, time.monotonic())

    def _break(self, error: Exception) -> None:
        """A collective has failed. The coordinator, who sees a rank end at that moment, knows which."""
        if self._broken or self._closed:
            return
        name = self._engine.name if self._engine is not None else "the engine"
        self._broken = f"{name} failed: {error}"
        _log.debug("%s", self._broken)
        if self._end is not None:
            self._finish_all(self._end.status, self._end.peer)
            return
        verdict = threading.Timer(_VERDICT_S, self._loop.put, [partial(self._finish_all, LINK_LOST, 0)])
        verdict.daemon = True
        verdict.start()

    def _finish_all(self, status: int, peer: int) -> None:
        """No round can come about any more, but those in progress where a rank left in order."""
        if self._end is None or status == CLOSED:
            self._end = _End(status, peer)
        lasting = self._end.status == DEPARTED and status == DEPARTED and not self._broken
        for one in list(self._rounds.values()):
            if not (lasting and one.started_bytes == one.spec.nbytes):
                one.resolve(self._end.status, self._end.peer)
                del self._rounds[one.tensor]
        if self._leader is not None and not lasting:
            self._leader.close()
        if status == LINK_LOST and self._engine is not None:
            self._engine.close()  # neighbours that wait for this rank's bytes need not wait any longer

    def _retract(self, tensor: int) -> None:
        one = self._rounds.get(tensor)
        if one is not None and one.started_bytes == 0:
            one.resolve(RETRACTED)
            del self._rounds[tensor]
        if self._leader is not None:
            self._leader.forget(tensor)

    def _forget(self, tensor: int) -> None:
        self._retract(tensor)

    def _tell_missing(self, question: AskMissing) -> None:
        ranks = [] if self._leader is None else self._leader.missing(question.id)
        self._control.notify(Missing(question.request, ranks, [float("inf")] * len(ranks)))
