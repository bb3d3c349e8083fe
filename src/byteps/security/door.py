"""The accepting end of a port: strangers are kept apart, and out, while the job goes on."""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
from collections.abc import Callable, Coroutine

from byteps.config import format_address
from byteps.errors import HandshakeError
from byteps.security.drivers import HungUp

HANDSHAKES_AT_ONCE = 512
"""So many connections may be in their handshake; then those that take long make room for new ones."""

PATIENCE_S = 1.0
"""How long a handshake may take when others wait for its place. A peer of the job takes milliseconds."""

Admit = Callable[[socket.socket], Coroutine[None, None, None]]

_log = logging.getLogger("byteps.security")


class Door:
    """Accepts connections and has each prove itself.

    Args:
        listener: a non-blocking socket that listens.
        admit: called with each new, non-blocking socket; takes it over, or raises HandshakeError or OSError
            within the handshake's deadline, and then it is closed here.
    """

    def __init__(self, listener: socket.socket, admit: Admit) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._admit = admit
        self._admissions: dict[asyncio.Task[None], float] = {}  # when each began, the oldest first
        self._closing = False

    async def serve(self) -> None:
        """Accept until cancelled.

        Raises:
            OSError: no descriptor is left, and no handshake will give one back.
        """
        while True:
            await self._make_room(HANDSHAKES_AT_ONCE)
            await self._knock()
            try:
                sock, address = self._listener.accept()
            except (ConnectionError, BlockingIOError):
                continue  # it was gone before we got to it
            except OSError as error:
                if not self._admissions:
                    raise
                _log.warning("cannot accept a connection now: %s", error)
                await self._make_room(len(self._admissions))
                continue
            sock.setblocking(False)
            task = asyncio.create_task(self._admit(sock))
            self._admissions[task] = self._loop.time()
            task.add_done_callback(functools.partial(self._admitted, sock, format_address(*address[:2])))

    async def close(self) -> None:
        """Break off the handshakes under way."""
        self._closing = True
        tasks = list(self._admissions)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _knock(self) -> None:
        """Wait until somebody is at the door. Asked to accept before that, the kernel would complain about a
        lack of descriptors though none is needed yet.
        """
        knocked = asyncio.Event()
        self._loop.add_reader(self._listener, knocked.set)
        try:
            await knocked.wait()
        finally:
            self._loop.remove_reader(self._listener)

    async def _make_room(self, limit: int) -> None:
        """Wait until fewer than ``limit`` handshakes are under way; the oldest has to go if it is slow."""
        while self._admissions and len(self._admissions) >= limit:
            oldest, began_s = next(iter(self._admissions.items()))
            left_s = began_s + PATIENCE_S - self._loop.time()
            if left_s <= 0:
                oldest.cancel()
            await asyncio.wait(
                self._admissions, timeout=max(left_s, 0) or None, return_when=asyncio.FIRST_COMPLETED
            )

    def _admitted(self, sock: socket.socket, peer: str, task: asyncio.Task[None]) -> None:
        del self._admissions[task]
        if task.cancelled():  # perhaps before it ran at all
            sock.close()
            if not self._closing:
                _log.warning("turned a connection away: %s was slow, and others waited for its place", peer)
        elif (error := task.exception()) is not None:
            sock.close()
            level = logging.DEBUG if isinstance(error, HungUp) else logging.WARNING
            unexpected = not isinstance(error, (HandshakeError, OSError))
            _log.log(level, "turned a connection away: %s", error, exc_info=error if unexpected else None)
