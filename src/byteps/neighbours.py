"""Meeting the ranks of one's own node: shared memory and the connections over which its use is agreed.

The memory is a file without a name, passed as a descriptor over a Unix socket in the abstract namespace. So
nothing can collide or be left behind, and ranks that can meet there do share a machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from byteps import _native
from byteps.config import Config
from byteps.errors import ConfigError, HandshakeError, JoinError
from byteps.hierarchy import SEGMENT_BYTES, piece_bytes
from byteps.security import (
    Identity,
    accept_steps,
    check_user,
    connect_steps,
    handshake,
    listen_locally,
    load_token,
    local_address,
)
from byteps.transport.memory import NotShared, receive_memory, send_memory
from byteps.wire import Welcome

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NETWORK = Path("/proc/self/ns/net")
RING_BYTES = 64 << 10
"""Of frames without payload, each way."""
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_HINT = "set BYTEPS_HIERARCHICAL=off if they cannot share memory"

_log = logging.getLogger("byteps.worker")


@dataclass(frozen=True, slots=True)
class Entrance:
    """Where neighbours find this rank, and the memory that it shares with them. Made before it joins.

    Attributes:
        place: The same for processes that can find each other: one boot of one machine, seen alike.
        name: Of the listening socket.
        segment: Descriptor of the memory.
    """

    place: str
    name: str
    listener: socket.socket
    segment: int

    @classmethod
    def open(cls, config: Config) -> Entrance | None:
        """Prepare to meet neighbours, unless the settings say that there are none.

        Raises:
            ConfigError: ``hierarchical = on``, and there is no memory to share.
        """
        if config.hierarchical == "off" or config.local_size == 1 or config.size == 1:
            return None
        with contextlib.ExitStack() as undo:
            try:
                segment = os.memfd_create("byteps", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
                undo.callback(os.close, segment)
                # Using memory that is not there, or not any more, would end the process.
                os.posix_fallocate(segment, 0, SEGMENT_BYTES)
                fcntl.fcntl(segment, fcntl.F_ADD_SEALS, _SEALS)
                listener, name = listen_locally(backlog=64)
                undo.callback(listener.close)
                place = _place()
            except OSError as error:
                why = f"cannot share memory with ranks of this node: {error.strerror or error}"
                if config.hierarchical == "on":
                    raise ConfigError(
                        f"hierarchical is on, but this process {why}; raise the limit, or unset "
                        f"BYTEPS_HIERARCHICAL"
                    ) from error
                _log.warning("this process %s; it pushes all by itself", why)
                return None
            undo.pop_all()
            return cls(place, name, listener, segment)

    def close(self) -> None:
        """Let go of both. What is mapped stays so, and connections stay open."""
        self.listener.close()
        os.close(self.segment)


def meet_neighbours(
    entrance: Entrance | None, config: Config, welcome: Welcome, worker: _native.Worker
) -> None:
    """Connect to all ranks of the node, swap memory with them, and hand it all to the data plane.

    A rank that is alone on its node takes part, too, where others are not: it has to scale as they do.

    Raises:
        JoinError: A rank that should be on this node is not to be met.
    """
    ranks = next((node for node in welcome.nodes if welcome.rank in node), [])
    if len(ranks) == 1:
        _join(worker, welcome, ranks, [])
    elif entrance is not None and ranks:
        _Meeting(entrance, config, welcome, ranks).hold(worker)


def data_identity(config: Config, welcome: Welcome, lane: int) -> Identity:
    """Who this worker is on a connection for tensors."""
    return Identity(
        role="worker",
        number=welcome.rank,
        job_id=config.job_id,
        purpose="data",
        lane=lane,
        epoch=welcome.epoch,
    )


class _Meeting:
    def __init__(self, own: Entrance, config: Config, welcome: Welcome, ranks: list[int]) -> None:
        self._own = own
        self._config = config
        self._welcome = welcome
        self._ranks = ranks
        self._place = ranks.index(welcome.rank)
        self._end_s = time.monotonic() + config.peer_timeout_s
        self._links: dict[tuple[int, int], _native.Link] = {}  # by place and lane
        self._segments = {self._place: own.segment}

    def hold(self, worker: _native.Worker) -> None:
        """Call those before this rank, answer those after it: nobody waits for one who waits for him."""
        lanes = self._welcome.settings.lanes
        try:
            for place in range(self._place):
                for lane in range(lanes):
                    self._call(place, lane)
            while len(self._links) < lanes * (len(self._ranks) - 1):
                self._answer(lanes)
            segments = [self._segments[place] for place in range(len(self._ranks))]
            _join(worker, self._welcome, self._ranks, segments)
            for (place, lane), link in self._links.items():
                worker.add_neighbour(place, lane, link)
        finally:
            for place, segment in self._segments.items():
                if place != self._place:
                    os.close(segment)

    def _call(self, place: int, lane: int) -> None:
        rank = self._ranks[place]
        try:
            with socket.socket(socket.AF_UNIX) as sock:
                sock.settimeout(self._left_s())
                sock.connect(local_address(self._welcome.doors[place]))
                check_user(sock)
                handshake(sock, connect_steps(load_token(self._config), self._identity(lane)), self._left_s())
                self._swap(sock, place, lane)
        except (OSError, HandshakeError, NotShared) as error:
            raise JoinError(
                f"rank {self._welcome.rank} cannot share memory with rank {rank}, although both say that "
                f"they run on one node: {error}; {_HINT}"
            ) from error

    def _answer(self, lanes: int) -> None:
        """Let in whoever proves to be of this node; strangers are turned away."""
        self._own.listener.settimeout(self._left_s())
        try:
            sock, _ = self._own.listener.accept()
        except TimeoutError as error:
            met = {place for place, _ in self._links} | {self._place}
            missing = [rank for place, rank in enumerate(self._ranks) if place not in met]
            raise JoinError(
                f"rank {self._welcome.rank} waited {self._config.peer_timeout_s:g} s in vain for ranks "
                f"{', '.join(map(str, missing))}, which say that they run on its node; {_HINT}"
            ) from error
        try:
            with sock:
                check_user(sock)
                steps = accept_steps(load_token(self._config), self._identity(0), self._objection(lanes))
                peer = handshake(sock, steps, min(5.0, self._left_s()))
                sock.settimeout(self._left_s())
                self._swap(sock, self._ranks.index(peer.number), peer.lane)
        except (OSError, HandshakeError, NotShared) as error:
            _log.warning("rank %d turned a local connection away: %s", self._welcome.rank, error)

    def _objection(self, lanes: int) -> Callable[[Identity], str]:
        def check(peer: Identity) -> str:
            expected = peer.role == "worker" and peer.number in self._ranks[self._place + 1 :]
            if not expected or peer.lane >= lanes:
                return f"rank {self._welcome.rank} expects no {peer} on its node"
            taken = (self._ranks.index(peer.number), peer.lane) in self._links
            return f"rank {peer.number} is here already" if taken else ""

        return check

    def _swap(self, sock: socket.socket, place: int, lane: int) -> None:
        """Agree on the memory that frames go through, then swap that of tensors: one for all lanes."""
        ring = send_memory(sock, RING_BYTES) if place < self._place else receive_memory(sock)
        with contextlib.closing(ring):
            link = ring.link(sock)
        if lane == 0:
            self._swap_segments(sock, place)
        self._links[place, lane] = link

    def _swap_segments(self, sock: socket.socket, place: int) -> None:
        socket.send_fds(sock, [b"m"], [self._own.segment])
        data, descriptors, _, _ = socket.recv_fds(sock, 1, 1, socket.MSG_CMSG_CLOEXEC)
        if not data or not descriptors:
            raise ConnectionResetError("it sent no memory")
        self._segments[place] = descriptors[0]
        if fcntl.fcntl(descriptors[0], fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            raise HandshakeError("it could take back the memory that it sent")

    def _identity(self, lane: int) -> Identity:
        return data_identity(self._config, self._welcome, lane)

    def _left_s(self) -> float:
        return max(self._end_s - time.monotonic(), 1e-3)


def _join(worker: _native.Worker, welcome: Welcome, ranks: list[int], segments: list[int]) -> None:
    lanes = welcome.settings.lanes
    try:
        worker.join_node(
            ranks.index(welcome.rank),
            ranks,
            segments,
            lanes,
            piece_bytes(len(ranks), lanes),
            len(welcome.servers),
        )
    except RuntimeError as error:
        raise JoinError(f"rank {welcome.rank}: {error}; {_HINT}") from error


def _place() -> str:
    """Abstract sockets are seen in one network namespace, and memory is shared within one kernel."""
    boot = _BOOT_ID.read_text(encoding="ascii").strip()
    return f"{boot} {socket.gethostname()} {_NETWORK.stat().st_ino}"
