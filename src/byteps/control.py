"""A member's end of the control plane: calls to the coordinator, and what it says unasked.

``ControlClient`` matches answers to calls; a ``Channel`` carries the messages: ``dialing.SocketChannel`` over
TCP (or TLS), and in ``byteps.testing`` one within the process.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

from byteps.errors import (
    HandshakeError,
    JoinError,
    PeerLost,
    ProtocolError,
    SessionClosed,
    StallTimeout,
)
from byteps.wire import (
    AskClock,
    BarrierDone,
    Clock,
    Declared,
    Heartbeat,
    Join,
    JoinRefused,
    Lost,
    Message,
    Missing,
    Welcome,
)

Answer = TypeVar("Answer", bound=Message)

_ANSWERS = (Declared, BarrierDone, Missing, Clock)
_CLOCK_S = 2.0
_VERDICT_S = 2.0
"""How long somebody whose link broke waits for the coordinator to say who was lost."""


class Channel(Protocol):
    """Carries messages to the coordinator. What comes back goes to the client's ``deliver``."""

    def send(self, message: Message) -> None:
        """Send, or raise OSError if the connection has ended."""

    def close(self) -> None:
        """End the connection. ``ControlClient.closed`` may still be called once."""

    def abandon(self) -> None:
        """In a forked child: let go of the connection without ending the parent's."""


class ControlClient:
    """Calls to the coordinator from any thread.

    Args:
        on_notice: called with each message that answers no call, on the channel's thread; must not block.
        on_closed: called once with the reason when the connection ends, unless ``close`` came first.
        on_welcome: called when the job is complete, before any later message is delivered.
        coordinator: how errors call the coordinator.
    """

    def __init__(
        self,
        on_notice: Callable[[Message], None],
        on_closed: Callable[[str], None],
        on_welcome: Callable[[Welcome], None] = lambda welcome: None,
        coordinator: str = "the coordinator",
    ) -> None:
        self._coordinator = coordinator
        self._on_notice = on_notice
        self._on_closed = on_closed
        self._on_welcome = on_welcome
        self._channel: Channel | None = None
        self._lock = threading.Lock()
        self._requests = itertools.count(1)
        self._calls: dict[int, concurrent.futures.Future[Message]] = {}
        self._welcome: concurrent.futures.Future[Message] = concurrent.futures.Future()
        self._end: PeerLost | SessionClosed | None = None
        self._ended = threading.Event()

    def attach(self, channel: Channel) -> None:
        """Use this channel from now on."""
        self._channel = channel

    def join(self, message: Join, timeout_s: float) -> Welcome:
        """Become a member; returns once the job is complete.

        Raises:
            JoinError: refused, or the others did not come in time.
            PeerLost: a member died before the job was complete.
        """
        self.notify(message)
        try:
            answer = self._welcome.result(timeout_s)
        except concurrent.futures.TimeoutError as error:
            raise JoinError(
                f"the job was not complete within {timeout_s:g} s; the coordinator's log names who is missing"
            ) from error
        if isinstance(answer, JoinRefused):
            raise JoinError(answer.reason)
        assert isinstance(answer, Welcome)
        return answer

    def call(
        self, kind: type[Answer], make: Callable[[int], Message], timeout_s: float | None = None
    ) -> Answer:
        """Send ``make(request number)`` and wait for its answer.

        Raises:
            PeerLost: the connection to the coordinator ended.
            StallTimeout: no answer came within ``timeout_s`` seconds.
        """
        future: concurrent.futures.Future[Message] = concurrent.futures.Future()
        with self._lock:
            request = next(self._requests)
            self._calls[request] = future
        try:
            self.notify(make(request))
            answer = future.result(timeout_s)
        except concurrent.futures.TimeoutError as error:
            raise StallTimeout(f"the coordinator did not answer within {timeout_s:g} s") from error
        finally:
            with self._lock:
                self._calls.pop(request, None)
        if not isinstance(answer, kind):
            raise ProtocolError(f"the coordinator answered {type(answer).__name__}, not {kind.__name__}")
        return answer

    def wall_clock_s(self, timeout_s: float = _CLOCK_S) -> float:
        """The coordinator's wall clock, seconds since the epoch.

        Raises:
            PeerLost, StallTimeout: as ``call``.
        """
        return self.call(Clock, AskClock, timeout_s).wall_s

    @contextlib.contextmanager
    def blaming_the_lost(self) -> Iterator[None]:
        """Whoever cannot reach a member that was lost fails for that reason.

        Raises:
            PeerLost: the body could not, and the coordinator says who was lost.
        """
        try:
            yield
        except (JoinError, HandshakeError):
            if (lost := self.lost_peer()) is not None:
                raise PeerLost(lost) from None  # how it came to light would only distract
            raise

    def lost_peer(self) -> str | None:
        """Why the job is lost. The coordinator sees a peer end at the same moment as the peer's links break,
        and knows more about it, so wait a little for what it says.
        """
        self._ended.wait(_VERDICT_S)
        return str(self._end) if isinstance(self._end, PeerLost) else None

    def notify(self, message: Message) -> None:
        """Send a message that has no answer.

        Raises:
            PeerLost: the connection to the coordinator ended.
            SessionClosed: because this end closed it.
        """
        if self._end is not None:
            raise type(self._end)(str(self._end))
        if self._channel is None:
            raise PeerLost("not connected to the coordinator")
        try:
            self._channel.send(message)
        except OSError as error:
            raise PeerLost(f"lost {self._coordinator}: {error}") from error

    def deliver(self, message: Message) -> None:
        """A message has come in. Called by the channel."""
        if isinstance(message, Heartbeat):
            return
        if isinstance(message, Welcome | JoinRefused) and not self._welcome.done():
            try:
                if isinstance(message, Welcome):
                    self._on_welcome(message)
            except Exception as error:  # whoever waits for it must not wait for ever
                self._welcome.set_exception(JoinError(f"cannot start: {error}"))
            else:
                self._welcome.set_result(message)
        elif isinstance(message, Lost):
            waiting = not self._welcome.done()
            self.fail(message.reason)
            if not waiting:
                self._on_notice(message)
        elif isinstance(message, _ANSWERS):
            with self._lock:
                future = self._calls.pop(message.request, None)  # so that nobody else answers it
            if future is not None:
                future.set_result(message)
        else:
            self._on_notice(message)

    def closed(self, reason: str) -> None:
        """The connection has ended. Called by the channel."""
        if self._end is not None:
            return
        text = f"lost {self._coordinator}: {reason}"
        self._fail(PeerLost(text))
        self._on_closed(text)

    def fail(self, reason: str) -> None:
        """The job is lost, though the connection may still be there: calls in progress and to come fail."""
        if self._end is None:
            self._fail(PeerLost(reason))

    def close(self) -> None:
        """End the connection; calls in progress fail."""
        if self._end is None:
            self._fail(SessionClosed("the session was shut down"))
        # They lead back to the owner: without them it is freed at once, and not when garbage is collected.
        self._on_notice = self._on_closed = self._on_welcome = _ignore
        if self._channel is not None:
            self._channel.close()

    def abandon(self) -> None:
        """In a forked child: drop what was inherited."""
        self._end = PeerLost("this process was forked from a member of the job")
        if self._channel is not None:
            self._channel.abandon()

    def _fail(self, error: PeerLost | SessionClosed) -> None:
        self._end = error
        self._ended.set()
        with self._lock:
            waiting = [*self._calls.values(), self._welcome]
            self._calls.clear()
        for future in waiting:
            if not future.done():
                future.set_exception(error)


def _ignore(_: object) -> None:
    """For a client that has been closed."""


class Owner(Protocol):
    """What notices are for."""

    def on_notice(self, message: Message) -> None:
        """A message that answers no call has come."""

    def fail(self, reason: str) -> None:
        """The job cannot go on."""


class Relay:
    """Passes notices to an owner that is made only after the first of them may have come."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._early: list[Callable[[Owner], None]] = []
        self._owner: Owner | None = None

    def attach(self, owner: Owner) -> None:
        """The owner is there now."""
        with self._lock:
            self._owner = owner
            early, self._early = self._early, []
        for action in early:
            action(owner)

    def on_notice(self, message: Message) -> None:
        """For ``ControlClient``."""
        self._pass(lambda owner: owner.on_notice(message))

    def on_closed(self, reason: str) -> None:
        """For ``ControlClient``."""
        self._pass(lambda owner: owner.fail(reason))

    def _pass(self, action: Callable[[Owner], None]) -> None:
        with self._lock:
            owner = self._owner
            if owner is None:
                self._early.append(action)
        if owner is not None:
            action(owner)
