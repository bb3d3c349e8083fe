"""A session: everything that one worker process owns, from joining the job to leaving it.

Two sessions may live in one process. Adapters hold their session explicitly.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence

from byteps.communicator import (
    DEPARTED,
    LINK_LOST,
    OK,
    RETRACTED,
    Absence,
    Buffer,
    Communicator,
    Transfer,
)
from byteps.config import Config
from byteps.control import ControlClient
from byteps.diagnostics import count, describe_rounds, stall
from byteps.errors import (
    BytePSError,
    DeclarationError,
    DuplicateNameError,
    PeerLeft,
    PeerLost,
    SessionClosed,
)
from byteps.in_flight import Handle, InFlight, Unfinished
from byteps.trace import Trace
from byteps.wire import Barrier, BarrierDone, Departed, Leave, Lost, Message, Retract, TensorSpec, Welcome

__all__ = ["Buffer", "Handle", "Session"]

_VERDICT_S = 2.0
"""How long a broken link waits for the coordinator to say who was lost."""
_REPORT_S = 2.0
"""How long a report waits for the coordinator to say who is late."""

_log = logging.getLogger("byteps.session")


class Session:
    """One worker's membership of one job. Made by ``joining.connect``.

    Attributes:
        rank, size: this worker's number and the number of workers.
        local_rank, local_size: the same on this node.
        cross_rank, cross_size: the same among the ranks with this local rank, over the nodes.
        homogeneous: whether all nodes have equally many workers.
        servers: the number of servers.
        process_sets: ranks of each process set by its number, all ranks first; None: removed.
        joins: how often all ranks have joined; the same on all ranks whenever they communicate.
        config: the settings in force.
        trace: records the timeline, if one is asked for.
        unfinished: who may have rounds to finish before this worker leaves.
        on_shutdown: called when this worker has left.
    """

    def __init__(
        self,
        config: Config,
        welcome: Welcome,
        communicator: Communicator,
        control: ControlClient | None,
        trace: Trace | None = None,
    ) -> None:
        self.config = config
        self.rank = welcome.rank
        self.size = welcome.size
        self.local_rank = welcome.local_rank
        self.local_size = welcome.local_size
        self.cross_rank = welcome.cross_rank
        self.cross_size = welcome.cross_size
        self.homogeneous = welcome.homogeneous
        self.servers = len(welcome.servers)
        self.process_sets: list[tuple[int, ...] | None] = [tuple(range(welcome.size))]
        self.joins = 0
        self.communicator = communicator
        self.trace = trace or Trace()
        self._control = control
        self._absence = None if control is None else Absence(control)
        self._lock = threading.Lock()
        self._in_flight: InFlight[Handle] = InFlight()
        self._unnamed: Counter[str] = Counter()
        self._closed = False
        self._failure: str | None = None
        self._failed = threading.Event()
        self._moved_bytes = 0
        self._speed_since_s = time.monotonic()
        self.unfinished: weakref.WeakSet[Unfinished] = weakref.WeakSet()
        self.on_shutdown: list[Callable[[], None]] = []
        # Whoever forgets shutdown(): native threads must end before the memory that they write to is freed.
        weakref.finalize(self, self.trace.close)
        weakref.finalize(self, communicator.close)

    def declare(self, specs: Sequence[TensorSpec]) -> None:
        """Make tensors known in one message, so that they are placed together.

        Raises:
            DeclarationError: naming the ranks and what differs between them.
        """
        self._check_open()
        self.communicator.declare(specs)

    def submit(
        self, spec: TensorSpec, source: Buffer | None, destination: Buffer | None, *, priority: int = 0
    ) -> Handle:
        """Begin a round.

        Args:
            spec: the tensor; declared now if it was not before.
            source: this rank's contribution; ``None`` contributes nothing.
            destination: where the result goes; may be the source; ``None`` wants no result.
            priority: larger is more urgent.

        Raises:
            DuplicateNameError: the last round of this tensor is still in flight here.
            DeclarationError: the tensor does not match its earlier declaration.
        """
        if self._closed or self._failure is not None:
            self._check_open()
        nbytes = spec.nbytes
        for memory in (source, destination):
            if memory is not None and memory.nbytes != nbytes:  # native code would run over its end
                raise BytePSError(
                    f"tensor {spec.name!r} has {nbytes} bytes, but the buffer has {memory.nbytes}"
                )
        with self._lock:
            last = self._in_flight.get(spec.name)
            if last is not None and not last.poll():
                raise DuplicateNameError(
                    f"tensor {spec.name!r} is still in flight on rank {self.rank}; wait for its handle "
                    f"(synchronize) first, or use another name"
                )
            if self._absence is not None:
                self._absence.note(spec)
            transfer = self.communicator.submit(spec, source, destination, priority)
            handle = Handle(self, spec, nbytes, transfer, (source, destination))
            self._in_flight[spec.name] = handle
            unclaimed = self._in_flight.over()
        for one in unclaimed:
            with contextlib.suppress(BytePSError):  # which is raised again to who waits for it all the same
                one.wait()
        return handle

    def next_name(self, kind: str) -> str:
        """A name for the next unnamed tensor of this kind: ranks agree if they call in the same order."""
        with self._lock:
            number = self._unnamed[kind]
            self._unnamed[kind] += 1
        return f"{kind}.noname.{number}"

    def skip_names(self, kind: str, number: int) -> None:
        """Unnamed tensors of this kind are numbered from ``number``, or later."""
        with self._lock:
            self._unnamed[kind] = max(self._unnamed[kind], number)

    def join(self) -> int:
        """Say that this rank has no more data: it takes part in the others' rounds with nothing to add.

        Returns:
            Once all ranks have joined: the rank that was last.

        Raises:
            PeerLeft: a rank has shut down and will not join.
            PeerLost: a member died.
        """
        self._finish_rounds()
        self._check_open()
        last = self.rank if self._absence is None else self._absence.stand_in(self, self._unnamed)
        self.joins += 1
        return last

    def barrier(self) -> None:
        """Wait until every rank has come here.

        Raises:
            PeerLeft: a rank has shut down and will not come.
        """
        self._check_open()
        if self._control is None:
            return
        departed = self._control.call(BarrierDone, Barrier).departed
        if departed >= 0:
            raise PeerLeft(
                f"rank {self.rank} came to a barrier, but rank {departed} has shut down and will not; all "
                f"ranks must come to the same barriers before they shut down"
            )

    def pushpull_speed(self) -> tuple[int, float]:
        """Milliseconds since the epoch, and MB/s of completed rounds since the last call."""
        with self._lock:
            now_s, moved, since_s = time.monotonic(), self._moved_bytes, self._speed_since_s
            self._moved_bytes, self._speed_since_s = 0, now_s
        return int(time.time() * 1000), moved / 1e6 / max(now_s - since_s, 1e-9)

    def shutdown(self) -> None:
        """Leave the job. Rounds in flight fail with SessionClosed. Calling it again does nothing."""
        self._finish_rounds()
        if not self._close(leaves=True):
            return
        if self._control is not None:
            self._control.close()
        self._run_on_shutdown()

    def end_with_process(self, failed: bool) -> None:
        """What ``shutdown`` is for a process that ends now.

        The control connection stays open until the process is gone: the other ranks, which fail if they still
        need this one, must not end before it does.

        Args:
            failed: by an exception that nobody caught; then this rank is lost instead of leaving in order.
        """
        if not failed:
            self._finish_rounds()
        if self._close(leaves=not failed):
            self._run_on_shutdown()

    def _finish_rounds(self) -> None:
        """Let those who leave rounds to themselves take the results, if there will be any."""
        if self._failure is None and not self._closed:
            for each in list(self.unfinished):
                each.finish_rounds()

    def _close(self, leaves: bool) -> bool:
        """End the data plane; False if that was done before."""
        with self._lock:
            if self._closed:
                return False
            self._closed = True
        if leaves and self._control is not None and self._failure is None:
            try:
                self._control.notify(Leave())
            except PeerLost:
                _log.debug("the coordinator was gone before this rank left")
        self.communicator.close()
        self._in_flight.clear()
        return True

    def _run_on_shutdown(self) -> None:
        self.trace.close()
        for action in self.on_shutdown:
            action()

    def settle(self, handle: Handle, transfer: Transfer) -> None:
        """Account for a round that is over; raise if it failed. Called by the handle."""
        with self._lock:
            current = self._in_flight.get(handle.name) is handle
            if current:
                del self._in_flight[handle.name]
                self._moved_bytes += handle.nbytes
        if transfer.status != OK:
            raise self._error(handle, transfer)
        if current and handle.spec.ephemeral and not self._closed:
            self.communicator.finished(handle.spec)
            if self._absence is not None:
                self._absence.forget(handle.spec)

    def describe_stall(self, handle: Handle, round_number: int, waited_s: float) -> str:
        """What a round has waited for. Called by the handle."""
        late = self._late(handle.name, time.monotonic() + _REPORT_S)
        return stall(handle.name, round_number, late, waited_s)

    def report(self) -> list[str]:
        """What is in flight, line by line. Takes no lock: whoever holds one may be what is stuck."""
        pending = [handle for handle in list(self._in_flight.values()) if not handle.poll()]
        deadline_s = time.monotonic() + _REPORT_S
        rounds = [handle.describe(self._late(handle.name, deadline_s)) for handle in pending]
        head = f"rank {self.rank} of {self.size}: {count(len(rounds), 'tensor')} in flight"
        return [head, *describe_rounds(rounds), self.communicator.traffic()]

    def _late(self, name: str, deadline_s: float) -> list[tuple[int, float]] | None:
        left_s = deadline_s - time.monotonic()
        try:
            return self.communicator.missing(name, left_s) if left_s > 0 else None
        except BytePSError:
            return None

    def on_notice(self, message: Message) -> None:
        """What the coordinator says unasked. On the control thread."""
        if isinstance(message, Retract):
            self.communicator.retract(message)
        elif isinstance(message, Lost):
            self.fail(message.reason)
        elif self._absence is None or not self._absence.notice(message):
            if isinstance(message, Departed):
                _log.debug("rank %d has left", message.rank)
            self.communicator.notice(message)

    def fail(self, reason: str) -> None:
        """The job cannot go on: everything in flight and to come fails with this reason."""
        if self._failure is None:
            self._failure = reason
        self._failed.set()
        self.communicator.fail()
        if self._absence is not None:
            self._absence.fail(reason)
        if self._control is not None:
            self._control.fail(reason)

    def abandon(self) -> None:
        """In a forked child: drop what was inherited without disturbing the parent."""
        self._lock = threading.Lock()  # a thread that does not exist in this process may hold the other
        self._closed = True
        self._failure = "this process was forked from a worker; only the worker itself can communicate"
        self.communicator.abandon()
        self.trace.abandon()
        if self._control is not None:
            self._control.abandon()

    def _check_open(self) -> None:
        if self._failure is not None:
            raise PeerLost(self._failure)
        if self._closed:
            raise SessionClosed("the session was shut down; call init() again")

    def _error(self, handle: Handle, transfer: Transfer) -> BytePSError:
        where = f"{handle.name} (round {transfer.round}) failed on rank {self.rank}"
        if transfer.status == RETRACTED:
            return DeclarationError(self.communicator.explain(handle.name))
        if transfer.status == DEPARTED:
            return PeerLeft(
                f"{where}: rank {transfer.peer} has shut down and will not contribute; all ranks must submit "
                f"the same tensors before they shut down"
            )
        if transfer.status == LINK_LOST:
            # The coordinator sees a peer end at the same moment as the link breaks, and knows more about it.
            self._failed.wait(_VERDICT_S)
            return PeerLost(f"{where}: {self._failure or self.communicator.blame(transfer.peer)}")
        return SessionClosed(f"{where}: the session was shut down")
