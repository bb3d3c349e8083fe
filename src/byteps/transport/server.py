"""The server's end of a meeting: chooses, and makes the memory that the two share."""

from __future__ import annotations

import asyncio
import socket

from byteps import _native
from byteps.config import Config
from byteps.errors import HandshakeError
from byteps.security import Identity, async_handshake, load_token
from byteps.transport.meeting import Answer, Offer, Settled, allowed, hear, say, shortened
from byteps.transport.memory import NotShared, hand_over


async def meet_worker(
    sock: socket.socket, config: Config, server: Identity, worker: Identity, limit_s: float
) -> _native.Link:
    """Agree with a worker over an authenticated, non-blocking connection.

    The socket is the link's afterwards; after an error it must be closed.

    Args:
        sock: the connection.
        config: this server's settings.
        server: this end.
        worker: the other end.
        limit_s: how long it may take.

    Raises:
        HandshakeError: there is no transport that both may use, or the worker was too slow.
    """
    loop = asyncio.get_running_loop()
    end_s = loop.time() + limit_s
    offer = await async_handshake(loop, sock, hear(Offer), end_s - loop.time())
    ways = allowed(offer.setting, config.transport)
    link, problem = None, NotShared("", near=False)
    if "shm" in ways:
        try:
            link = await _shared(sock, config, server, worker, offer, end_s - loop.time())
        except NotShared as error:
            problem = error
    reason = _reason_to_refuse(offer, config, str(problem)) if link is None and "tcp" not in ways else ""
    answer = Answer(
        "shm" if link else "tcp", shortened(reason or str(problem)), refused=bool(reason), near=problem.near
    )
    await async_handshake(loop, sock, say(answer), end_s - loop.time())
    if reason:
        raise HandshakeError(f"refused the {worker}: {reason}")
    if link is not None:
        settled = await async_handshake(loop, sock, hear(Settled), end_s - loop.time())
        if not settled.reason:
            sock.close()
            return link
        if "tcp" not in ways:
            raise HandshakeError(f"the {worker} cannot share memory: {settled.reason}")
    return _native.socket_link(sock.detach())


async def _shared(
    sock: socket.socket, config: Config, server: Identity, worker: Identity, offer: Offer, limit_s: float
) -> _native.Link:
    """The link through memory that this server makes and hands to the worker."""
    if not offer.window:
        raise NotShared(offer.reason, near=False)
    memory = await hand_over(load_token(config), server, worker, offer.window, limit_s)
    try:
        return memory.link(sock)
    finally:
        memory.close()


def _reason_to_refuse(offer: Offer, config: Config, problem: str) -> str:
    """Why there is no transport for the two, as the worker is told."""
    if not allowed(offer.setting, config.transport):
        return (
            f"this server has transport = {config.transport}, the worker {offer.setting}; give all processes "
            f"the same BYTEPS_TRANSPORT, or auto"
        )
    return f"they cannot share memory, and transport = shm asks for it: {problem}; set BYTEPS_TRANSPORT=auto"
