"""The server's end of a meeting: chooses, and makes the memory that the two share."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

from byteps import _native
from byteps.config import Config
from byteps.errors import HandshakeError
from byteps.security import Identity, async_handshake, load_token
from byteps.transport.meeting import Answer, Offer, Settled, allowed, hear, say, shortened
from byteps.transport.memory import NotShared, hand_over
from byteps.transport.ucx import Library, NoUcx, connect


async def meet_worker(
    sock: socket.socket,
    config: Config,
    server: Identity,
    worker: Identity,
    limit_s: float,
    ucx: Library,
    sum_memory: Callable[[int], _native.SumMemory] | None = None,
) -> _native.Link:
    """Agree with a worker over an authenticated, non-blocking connection.

    The socket is the link's afterwards; after an error it must be closed.

    Args:
        sock: the connection.
        config: this server's settings.
        server: this end.
        worker: the other end.
        limit_s: how long it may take.
        ucx: for workers that ask for it.
        sum_memory: by lane, what workers of this host may read; raises ``OSError`` where there can be none.

    Raises:
        HandshakeError: there is no transport that both may use, or the worker was too slow.
    """
    loop = asyncio.get_running_loop()
    end_s = loop.time() + limit_s
    offer = await async_handshake(loop, sock, hear(Offer), end_s - loop.time())
    ways = allowed(offer.setting, config.transport)
    if "ucx" in ways:
        return await _through_ucx(sock, config, worker, offer, end_s, ucx)
    link, problem = None, NotShared("", near=False)
    if "shm" in ways:
        try:
            sums = _sums(sum_memory, worker.lane)
            link = await _shared(sock, config, server, worker, offer, end_s - loop.time(), sums)
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


async def _through_ucx(
    sock: socket.socket, config: Config, worker: Identity, offer: Offer, end_s: float, ucx: Library
) -> _native.Link:
    """The link through UCX. Both ends must be at work for it, so this one is on a thread of its own."""
    loop = asyncio.get_running_loop()
    try:
        port = ucx.open_port(config)
    except NoUcx as error:
        reason = f"this server cannot use UCX: {error}"
        answer = Answer("ucx", shortened(reason), refused=True)
        await async_handshake(loop, sock, say(answer), end_s - loop.time())
        raise HandshakeError(f"refused the {worker}: {reason}") from error
    await async_handshake(loop, sock, say(Answer("ucx", ucx=port.address())), end_s - loop.time())
    try:
        return await asyncio.to_thread(connect, port, sock, offer.ucx, end_s - loop.time())
    except NoUcx as error:
        raise HandshakeError(f"refused the {worker}: {error}") from error


def _sums(sum_memory: Callable[[int], _native.SumMemory] | None, lane: int) -> _native.SumMemory | None:
    """What the worker may read, if there is such memory; without, everything is copied to it."""
    with contextlib.suppress(OSError):  # memory or descriptors are short, or the kernel is older
        return sum_memory(lane) if sum_memory else None
    return None


async def _shared(
    sock: socket.socket,
    config: Config,
    server: Identity,
    worker: Identity,
    offer: Offer,
    limit_s: float,
    sums: _native.SumMemory | None,
) -> _native.Link:
    """The link through memory that this server makes and hands to the worker."""
    if not offer.window:
        raise NotShared(offer.reason, near=False)
    memory = await hand_over(load_token(config), server, worker, offer.window, limit_s, sums)
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
