"""How a server hands shared memory to a worker of its host: as file descriptors, over a Unix socket.

The worker opens a *window*: a listening socket whose name is abstract, so that it lies in no file system and
exists only within the worker's network namespace. Its random name travels over the authenticated TCP
connection. A server that finds the window is on the same host, and proves itself there once more. Hosts that
are emulated on one machine, and containers with networks of their own, have no such name in common.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import select
import socket
import time
from collections.abc import Sequence
from types import TracebackType

from byteps import _native
from byteps.diagnostics import size
from byteps.errors import HandshakeError, remedy
from byteps.security import (
    Identity,
    accept_steps,
    async_handshake,
    check_user,
    connect_steps,
    handshake,
    listen_locally,
    local_address,
)

RING_BYTES = 1 << 20
"""What fits into the memory each way. Little, so that it stays in the caches and nothing waits in it long."""

_MOST_DESCRIPTORS = 6
_PURPOSE = "memory"


class NotShared(Exception):
    """Why two processes do not share memory.

    Attributes:
        near: They are on one host.
    """

    def __init__(self, reason: str, near: bool) -> None:
        super().__init__(reason)
        self.near = near


class Memory:
    """One end of memory that two processes share.

    Args:
        descriptors: as from ``_native.create_shared_memory``.
        is_first: whether this process made it.
        sums: of the process that made it, what it lends from.
    """

    def __init__(
        self, descriptors: Sequence[int], is_first: bool, sums: _native.SumMemory | None = None
    ) -> None:
        self.descriptors = list(descriptors)
        self._is_first = is_first
        self._sums = sums

    def link(self, sock: socket.socket) -> _native.Link:
        """The link through it. The connection shows when the other end is gone; it carries nothing more.

        Raises:
            NotShared: there is no room for it in this process.
        """
        lifeline = -1
        try:
            lifeline = os.dup(sock.fileno())
            link = _native.shared_memory_link(self.descriptors, self._is_first, lifeline, self._sums)
        except (OSError, ValueError) as error:
            if lifeline >= 0:
                os.close(lifeline)
            raise NotShared(f"cannot use shared memory: {_text(error)}", near=True) from error
        self.descriptors.clear()
        return link

    def close(self) -> None:
        """Let go of what no link has taken over."""
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors.clear()


class Window:
    """Where a worker waits for the memory that one server makes. A context manager that closes it.

    Args:
        token: the job's secret.
        worker: this end.
        server: the only one that may come.
    """

    def __init__(self, token: bytes, worker: Identity, server: Identity) -> None:
        self._token = token
        self._worker = _for_memory(worker)
        self._server = server
        self._listener, self.name = listen_locally(backlog=4)

    def __enter__(self) -> Window:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()

    def receive(self, answering: socket.socket, end_s: float) -> Memory | str:
        """Wait until the server hands memory in, or says something on the other connection.

        Args:
            answering: that other connection.
            end_s: until when, by ``time.monotonic()``.

        Returns:
            The memory, or why there is none.
        """
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        poll.register(answering, select.POLLIN)
        reason = "the server came to no window of this worker"
        while events := dict(poll.poll(1000 * max(end_s - time.monotonic(), 0))):
            if self._listener.fileno() not in events:
                break
            try:
                return self._admit(end_s)
            except (OSError, HandshakeError) as error:
                reason = _text(error)
        return reason

    def _admit(self, end_s: float) -> Memory:
        sock, _ = self._listener.accept()
        with sock:
            check_user(sock)
            steps = accept_steps(self._token, self._worker, self._reason_to_refuse)
            handshake(sock, steps, max(end_s - time.monotonic(), 0))
            sock.settimeout(max(end_s - time.monotonic(), 1e-6))
            return receive_memory(sock)

    def _reason_to_refuse(self, peer: Identity) -> str:
        expected = (self._server.role, self._server.number)
        return "" if (peer.role, peer.number) == expected else f"this waits for the {self._server}"


async def hand_over(
    token: bytes,
    server: Identity,
    worker: Identity,
    window: str,
    limit_s: float,
    sums: _native.SumMemory | None = None,
) -> Memory:
    """Make memory and hand it to a worker.

    Args:
        token: the job's secret.
        server: this end.
        worker: the other end, which has proved itself over TCP.
        window: where it waits.
        limit_s: how long it may take.
        sums: what the worker may read besides.

    Returns:
        This end of the memory.

    Raises:
        NotShared: the worker is on another host, or there is no memory.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.setblocking(False)
            sock.connect(local_address(window))
            check_user(sock)
            steps = connect_steps(token, _for_memory(server))
            peer = await async_handshake(asyncio.get_running_loop(), sock, steps, limit_s)
            if (peer.role, peer.number, peer.lane) != (worker.role, worker.number, worker.lane):
                raise HandshakeError(f"the {peer} waits at the window of the {worker}")
            return send_memory(sock, RING_BYTES, sums)
    except ConnectionRefusedError as error:
        reason = "they are on different hosts, or in different network namespaces"
        raise NotShared(reason, near=False) from error
    except (OSError, HandshakeError) as error:
        raise NotShared(_text(error), near=True) from error


def send_memory(sock: socket.socket, ring_bytes: int, sums: _native.SumMemory | None = None) -> Memory:
    """Make memory and pass it on over a connection between two processes of a host.

    Args:
        ring_bytes: what fits into it each way.
        sums: what the other end may read besides.

    Raises:
        OSError: there is no memory, or the other end is gone.
    """
    memory = Memory(_create(ring_bytes), is_first=True, sums=sums)
    try:
        if sums is not None:
            memory.descriptors.append(os.dup(sums.descriptor()))
        socket.send_fds(sock, [bytes([len(memory.descriptors)])], memory.descriptors)
    except BaseException:
        memory.close()
        raise
    return memory


def receive_memory(sock: socket.socket) -> Memory:
    """The other end of ``send_memory``.

    Raises:
        HandshakeError: it did not come.
        OSError: the other end is gone.
    """
    count, received, _, _ = socket.recv_fds(sock, 1, _MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
    memory = Memory(received, is_first=False)
    if [*count] != [len(received)]:
        memory.close()
        raise HandshakeError(
            "not all descriptors of shared memory arrived; raise the limit of open files (ulimit -n)"
        )
    return memory


def _create(ring_bytes: int) -> list[int]:
    try:
        return _native.create_shared_memory(ring_bytes)
    except OSError as error:
        raise OSError(
            error.errno, f"cannot have {size(2 * ring_bytes)} of shared memory: {error.strerror}"
        ) from error


def _for_memory(identity: Identity) -> Identity:
    return dataclasses.replace(identity, purpose=_PURPOSE)


def _text(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.strerror or error}{remedy(error)}"
    return str(error)
