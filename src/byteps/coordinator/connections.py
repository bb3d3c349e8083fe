"""The coordinator's two kinds of connections under asyncio: control messages, and heartbeats."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import cast

from byteps.errors import ProtocolError
from byteps.security import Identity
from byteps.wire import Decoder, Join, JoinRefused, Message, encode

_log = logging.getLogger(__name__)


class Connection(asyncio.Protocol):
    """What both kinds share: a transport while there is one."""

    transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        self.transport = None

    def abort(self) -> None:
        """End the connection at once."""
        if self.transport is not None:
            self.transport.abort()


class ControlConnection(Connection):
    """One peer's control connection.

    Args:
        peer: Who it proved to be.
        received: Called with each message; a ``ProtocolError`` that it raises ends the connection.
        ended: Called once with the reason when the connection has ended.
    """

    def __init__(
        self, peer: Identity, received: Callable[[Message], None], ended: Callable[[str], None]
    ) -> None:
        self._peer = peer
        self._received = received
        self._ended = ended
        self._decoder = Decoder()
        self._reason = ""

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        try:
            for message in self._decoder.feed(data):
                self._check_role(message)
                self._received(message)
        except ProtocolError as error:
            self._break(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        super().connection_lost(exc)
        self._ended(self._reason or (f"connection broke: {exc}" if exc else "connection closed"))

    def send(self, message: Message) -> None:
        """Tell the peer something; one that is refused gets nothing after that."""
        if self.transport is None or self.transport.is_closing():
            return
        try:
            self.transport.write(encode(message))
        except ProtocolError as error:
            self._break(error)
        if isinstance(message, JoinRefused):
            _log.warning("refused %s: %s", self._peer, message.reason)
            self.transport.close()

    def _check_role(self, message: Message) -> None:
        if isinstance(message, Join) and message.role != self._peer.role:
            raise ProtocolError(f"a {self._peer.role} asked to join as a {message.role}")

    def _break(self, error: ProtocolError) -> None:
        self._reason = str(error)
        self.abort()


class BeaconConnection(Connection):
    """One peer's heartbeat connection: that it was opened, and any byte on it, is a sign of life.

    Args:
        beat: Called at each sign of life.
        ended: Called once when the connection has ended, which by itself means nothing.
    """

    def __init__(self, beat: Callable[[], None], ended: Callable[[BeaconConnection], None]) -> None:
        self._beat = beat
        self._ended = ended

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        super().connection_made(transport)
        self._beat()

    def data_received(self, data: bytes) -> None:
        """Called by asyncio. What the bytes are does not matter."""
        self._beat()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        super().connection_lost(exc)
        self._ended(self)
