"""The coordinator without I/O: what members say goes in, what they are to be told comes out.

A driver (sockets, or the same process) numbers its connections, hands over what arrives and when connections
end, delivers what is returned in order, and calls ``tick`` when ``deadline_s`` has come.
"""

from __future__ import annotations

import enum
import logging
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from byteps.coordinator.declarations import Outgoing, ToRank
from byteps.coordinator.machines import server_weights
from byteps.coordinator.membership import Member, Membership, name_ranks
from byteps.coordinator.requests import Requests
from byteps.coordinator.waiting import WaitLog
from byteps.diagnostics import count
from byteps.errors import ConfigError, JoinError, ProtocolError
from byteps.placement import Placer, Unplaced
from byteps.tuning.records import default_folder
from byteps.tuning.samplers import require_optuna
from byteps.tuning.tuner import Try
from byteps.wire import Departed, End, Join, JoinRefused, Knobs, Leave, Lost, Message

_log = logging.getLogger(__name__)

FAREWELL_S = 1.0
"""How long a failed job waits for the survivors to go."""


class Phase(enum.Enum):
    """How far a job has come."""

    JOINING = "joining"
    RUNNING = "running"
    ENDING = "ending"
    FAILED = "failed"


Outbox = list[tuple[int, Message]]
"""Who is to be told what, in this order."""
Later = Callable[[Callable[[], Try], Callable[[Try], Outbox]], None]


class Coordinator:
    """One job from the first ``Join`` until everybody is gone.

    Args:
        num_workers: Workers to wait for; 0 if the members are to tell.
        num_servers: Servers to wait for; 0 if the members are to tell.
        clock: Monotonic time in seconds.
        join_timeout_s: How long to wait for everybody to join.
        peer_timeout_s: How long a member may be silent before it is lost, once the job has started.
        later: Runs the first function without holding up anybody, then the second with its result, and
            delivers what that returns.
        tune_folder: Where results of tuning are kept.
        connection_rate: Bytes per second of rank 0's links from which spare lanes are used; infinite: never.

    Attributes:
        finished: Whether the job is over and nobody is left to be told anything.
        failure: Why the job failed; ``None`` as long as it has not.
    """

    def __init__(
        self,
        num_workers: int = 0,
        num_servers: int = 0,
        clock: Callable[[], float] = time.monotonic,
        join_timeout_s: float = 600.0,
        peer_timeout_s: float = 30.0,
        later: Later | None = None,
        tune_folder: Path | None = None,
        connection_rate: float = math.inf,
    ) -> None:
        self.finished = False
        self.failure: str | None = None
        self._clock = clock
        self._join_timeout_s = join_timeout_s
        self._peer_timeout_s = peer_timeout_s
        self._phase = Phase.JOINING
        self._phase_ends_s: float | None = clock() + join_timeout_s
        self._members = Membership(num_workers, num_servers)
        self._left: dict[int, tuple[int, float]] = {}  # rank and time limit of who has said Leave
        self._waiting = WaitLog(clock)
        self._waiting.begin()
        self._requests: Requests | None = None
        self._later = later
        self._tune_folder = tune_folder or default_folder()
        self._connection_rate = connection_rate

    @property
    def deadline_s(self) -> float | None:
        """When ``tick`` has something to do, on the coordinator's clock; ``None``: none is due."""
        times = [self._phase_ends_s, self._waiting.due_s, *(limit_s for _, limit_s in self._left.values())]
        if self._phase is Phase.RUNNING:
            times += [one.heard_s + self._peer_timeout_s for one in self._members if one.heard_s is not None]
        return min((moment for moment in times if moment is not None), default=None)

    def received(self, member: int, message: Message) -> Outbox:
        """A member has sent a message.

        Raises:
            ProtocolError: No correct peer sends this now. The driver is to close the connection, then call
                ``disconnected``.
        """
        if isinstance(message, Join):
            return self._join(member, message)
        if self._phase is Phase.FAILED or member in self._left:
            return []
        sender = self._members.get(member)
        if sender is None:
            raise ProtocolError(f"{type(message).__name__} came before Join")
        if isinstance(message, Leave):
            return self._leave(sender)
        if self._requests is None:
            raise ProtocolError(f"{type(message).__name__} from {sender} came before Welcome")
        return self._request(self._requests, sender, message)

    def disconnected(self, member: int, reason: str) -> Outbox:
        """A connection has ended. Without ``Leave`` or ``End`` before, its member is lost: the job fails."""
        if member in self._left:
            return self._depart(member)
        gone = self._members.remove(member)
        if gone is None:
            return []
        if self._phase in (Phase.FAILED, Phase.ENDING):
            self.finished = not self._members
            return []
        return self._lose(gone, reason)

    def heartbeat(self, role: str, number: int) -> None:
        """A sign of life on a heartbeat connection."""
        member = self._members.find(role, number)
        if member is not None:
            member.heard_s = self._clock()

    def tick(self) -> Outbox:
        """Let time pass: whoever is overdue is given up, and long waits are logged."""
        now = self._clock()
        silent = self._silent(now, self._peer_timeout_s) if self._phase is Phase.RUNNING else None
        if silent is not None:
            self._members.remove(silent.id)
            return self._lose(silent, f"no heartbeat for {self._peer_timeout_s:g} s")
        overdue = next((member for member, (_, limit_s) in self._left.items() if limit_s <= now), None)
        if overdue is not None:
            return self._leaver_overdue(overdue, now)
        self._waiting.log(self._waiting_for)
        if self._phase_ends_s is not None and self._phase_ends_s <= now:
            return self._phase_over()
        return []

    def describe(self) -> list[str]:
        """How far the job is and whom it waits for, line by line."""
        workers, servers = len(self._members.workers), len(self._members.servers)
        members = f"{count(workers, 'worker')} and {count(servers, 'server')}"
        waits = self._phase is Phase.JOINING or (self._requests and self._requests.barrier_missing)
        return [
            f"{self._phase.value}, with {members}",
            *([f"waiting for {self._waiting_for()}"] if waits else []),
        ]

    def _join(self, member: int, message: Join) -> Outbox:
        try:
            if self._phase is not Phase.JOINING:
                raise JoinError(self.failure or "the job has started already, with all of its members")
            if self._members.get(member) is not None:
                raise ProtocolError(f"{self._members.get(member)} joined twice")
            _check_tuning(message)
            self._members.add(member, message)
            _log.info("%s has joined", self._members.get(member))
        except JoinError as error:
            return [(member, JoinRefused(str(error)))]
        if not self._members.complete:
            return []
        return self._start()

    def _start(self) -> Outbox:
        """Everybody is here."""
        if contradiction := self._members.contradiction():
            _log.warning("%s", contradiction)
        settings = self._members.settings
        greetings: Outbox = list(self._members.welcome())
        tuning = settings.tuning
        self._requests = Requests(
            self._members.size,
            self._placer(),
            self._silence_s,
            tuning.start.partition_bytes if tuning else 0,
            self._members.nodes,
        )
        if settings.spare_lanes:
            start = tuning.start if tuning else Knobs()
            self._requests.spread(settings.lanes, self._connection_rate, start)
        if tuning is not None and self._later is not None:
            self._requests.tune(tuning, self._members.num_servers, self._tune_folder, self._defer)
        for one in self._members:
            # Who has stopped since it joined will never open its heartbeat connection. One worker alone,
            # which needs no servers, opens none either.
            if self._members.size > 1 or not one.is_worker:
                one.heard_s = self._clock()
        self._enter(Phase.RUNNING, None)
        return greetings

    def _placer(self) -> Placer | Unplaced:
        """Where tensors are placed; servers have their numbers."""
        members, settings = self._members, self._members.settings
        if not members.needs_servers:
            return Unplaced(settings.partition_bytes)
        joined = ([one.join for one in group] for group in (members.workers, members.servers))
        lanes = settings.lanes - settings.spare_lanes
        return Placer(members.num_servers, lanes, settings.partition_bytes, server_weights(*joined))

    def _defer(self, work: Callable[[], Try], then: Callable[[Try], list[Outgoing]]) -> None:
        """Ask the tuner, elsewhere; what it wants comes back here, if the job still runs by then."""

        def deliver(wanted: Try) -> Outbox:
            return self._deliver(then(wanted)) if self._phase is Phase.RUNNING else []

        assert self._later is not None
        self._later(work, deliver)

    def _request(self, requests: Requests, sender: Member, message: Message) -> Outbox:
        if not sender.is_worker:
            return self._deliver(requests.from_server(sender.number, message))
        out = self._deliver(requests.from_worker(sender.number, message))
        if requests.barrier_missing:
            self._waiting.begin()
        else:
            self._waiting.end()
        return out

    def _leave(self, sender: Member) -> Outbox:
        """A worker leaves in order. Before the job has started that only frees its seat."""
        if not sender.is_worker:
            raise ProtocolError(f"{sender} cannot leave before the last worker has")
        self._members.remove(sender.id)
        self._left[sender.id] = sender.number, self._clock() + self._peer_timeout_s
        if self._requests is None or self._members.workers:
            return []
        self._enter(Phase.ENDING, self._peer_timeout_s)
        self.finished = not self._members
        return self._tell(End())

    def _depart(self, member: int) -> Outbox:
        """A worker that left is gone, or has had its time to go. Only now do the others fail that still need
        it: whatever made it leave early, its process has ended before theirs, so that a launcher sees who was
        first.
        """
        rank, _ = self._left.pop(member)
        if self._phase is not Phase.RUNNING or self._requests is None:
            return []
        self._waiting.end()
        return self._tell(Departed(rank)) + self._deliver(self._requests.depart(rank))

    def _leaver_overdue(self, member: int, now_s: float) -> Outbox:
        """The process of a worker that left is still there. Where a member has missed heartbeats, first is
        waited for what has become of it: the others are to hear of a loss rather than of a leaving that
        happened at the same time.
        """
        late = self._silent(now_s, self._peer_timeout_s / 2) if self._phase is Phase.RUNNING else None
        if late is None or late.heard_s is None:
            return self._depart(member)
        self._left[member] = self._left[member][0], late.heard_s + self._peer_timeout_s
        return []

    def _lose(self, gone: Member, reason: str) -> Outbox:
        text = f"{gone} was lost: {reason}"
        return self._fail(text, Lost(gone.join.role, gone.number, text))

    def _fail(self, failure: str, message: Message) -> Outbox:
        self.failure = failure
        self._enter(Phase.FAILED, FAREWELL_S)
        self.finished = not self._members
        return self._tell(message)

    def _phase_over(self) -> Outbox:
        """The time for the phase is up."""
        self._phase_ends_s = None
        if self._phase is Phase.JOINING:
            waited_for = self._members.waiting_for()
            text = f"the job did not start within {self._join_timeout_s:g} s: it waited for {waited_for}"
            return self._fail(text, JoinRefused(text))
        if self._phase is Phase.ENDING:
            names = ", ".join(str(one) for one in self._members)
            self.failure = (
                f"{names} did not end within {self._peer_timeout_s:g} s of the last worker's leaving"
            )
        self.finished = True
        return []

    def _enter(self, phase: Phase, limit_s: float | None) -> None:
        self._phase = phase
        self._phase_ends_s = None if limit_s is None else self._clock() + limit_s
        self._waiting.end()

    def _waiting_for(self) -> str:
        if self._requests is None:
            return self._members.waiting_for()
        return f"{name_ranks(self._requests.barrier_missing)} at a barrier"

    def _silent(self, now_s: float, for_s: float) -> Member | None:
        """A member that has not been heard of for so long."""
        return next(
            (one for one in self._members if one.heard_s is not None and one.heard_s + for_s <= now_s), None
        )

    def _silence_s(self, rank: int) -> float:
        """Seconds since a rank's last heartbeat; infinite for one without a heartbeat connection."""
        worker = self._members.find("worker", rank)
        return float("inf") if worker is None or worker.heard_s is None else self._clock() - worker.heard_s

    def _tell(self, message: Message) -> Outbox:
        return [(one.id, message) for one in self._members]

    def _deliver(self, outgoing: Sequence[Outgoing]) -> Outbox:
        """Put ranks' and servers' connections to messages; what is for departed ranks is dropped."""
        out: Outbox = []
        for one in outgoing:
            to = ("worker", one.rank) if isinstance(one, ToRank) else ("server", one.server)
            member = self._members.find(*to)
            if member is not None:
                out.append((member.id, one.message))
        return out


def _check_tuning(join: Join) -> None:
    """Turn a worker away that asks for what cannot be done here."""
    tuning = join.settings.tuning if join.settings is not None else None
    if tuning is not None and tuning.search == "bayes":
        try:
            require_optuna()
        except ConfigError as error:
            raise JoinError(f"worker rank {join.rank} cannot join: {error}") from error
