"""The worker role: joins the job and connects to every server."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass, field

from byteps import _native
from byteps.config import DEFAULT_PARTITION_BYTES, Config
from byteps.errors import ConfigError, HandshakeError, JoinError
from byteps.neighbours import Entrance, data_identity, meet_neighbours
from byteps.network import advertised_address, connect, parse_address
from byteps.scheduler import POLICIES
from byteps.security import connect_steps, handshake, load_token
from byteps.transport import Library, Meeting, may_add_lanes, meet_server
from byteps.wire import JobSettings, Join, Knobs, TuningSettings, Welcome

Linker = Callable[[int, int], _native.Link]
"""Opens the link to (server, lane)."""

_log = logging.getLogger("byteps.worker")


def settings_of(config: Config) -> JobSettings:
    """The settings that all workers of a job must share."""
    return JobSettings(
        lanes=config.connections,
        partition_bytes=config.partition_bytes or DEFAULT_PARTITION_BYTES,
        deterministic=config.deterministic,
        communicator="allreduce" if uses_collectives(config) else "parameter-server",
        tuning=_tuning_of(config),
        node_collectives=config.node_collectives,  # type: ignore[arg-type]  # Config checks choices
    )


def _tuning_of(config: Config) -> TuningSettings | None:
    """What is to be searched. Sizes that are set are where it begins, not automatic ones."""
    if not config.tune:
        return None
    if uses_collectives(config):
        start = Knobs(partition_bytes=config.collective_bytes, credit_bytes=config.credit_bytes)
    else:
        start = Knobs(config.partition_bytes, config.credit_bytes)
    return TuningSettings(start, config.tune_search, config.tune_trials, config.tune_window)  # type: ignore[arg-type]


def refuse_tuning(config: Config, size: int) -> None:
    """Say so where there is nothing to tune.

    Args:
        config: The settings.
        size: Number of workers; 0 if it is not known yet.

    Raises:
        ConfigError: ``tune`` is set and cannot do anything, or not without changing results.
    """
    if not config.tune:
        return
    if size == 1 and not config.force_distributed:
        raise ConfigError(
            "tune is set, but there is one worker: nothing is sent that could be tuned; start several "
            "workers (byteps run -np 2 --tune), or unset BYTEPS_TUNE"
        )
    if uses_collectives(config) and config.deterministic:
        raise ConfigError(
            "tune cannot go with deterministic and communicator = allreduce: where a tensor is cut changes "
            "how its sum is rounded; unset one of them"
        )


def uses_collectives(config: Config) -> bool:
    """Whether the workers sum among themselves, without servers."""
    return config.communicator == "allreduce"


def join_message(config: Config, entrance: Entrance | None = None) -> Join:
    """What this worker knows about itself and the job, and where ranks of its node find it."""
    return Join(
        role="worker",
        incarnation=secrets.token_hex(8),
        rank=config.rank,
        size=config.size,
        num_servers=0 if uses_collectives(config) else config.num_servers,
        local_rank=config.local_rank,
        local_size=config.local_size,
        node=socket.gethostname(),
        address=_address(config),
        pid=os.getpid(),
        settings=settings_of(config),
        place="" if entrance is None else entrance.place,
        door="" if entrance is None else entrance.name,
        may_add_lanes=may_add_lanes(config),
    )


def _address(config: Config) -> str:
    """Where this worker's traffic enters and leaves its machine. It tells which servers share that link."""
    # Nobody connects to a worker, so it need not have such an address.
    with contextlib.suppress(ConfigError):
        return advertised_address(config, parse_address(config.coordinator)[0]) if config.coordinator else ""
    return ""


def credit_of(config: Config) -> int:
    """Bytes that this worker may have in flight."""
    return config.credit_bytes


def start_data_plane(
    config: Config,
    welcome: Welcome,
    link: Linker,
    beacon: Callable[[], _native.Link] | None = None,
    event_capacity: int = 0,
    entrance: Entrance | None = None,
) -> _native.Worker:
    """The native worker, connected to every server by ``link``, and to the ranks of its node.

    Args:
        beacon: opens the heartbeat connection to the coordinator; first, as a server may be slow.
        event_capacity: how many events each lane keeps for the timeline; 0: none are recorded.
        entrance: where the ranks of this node find this one.
    """
    worker = _native.Worker(
        welcome.rank,
        welcome.settings.lanes,
        policy=POLICIES[config.scheduling],
        credit_bytes=credit_of(config),
        heartbeat_s=config.heartbeat_s,
        epoch=welcome.epoch,
        peer_timeout_s=config.peer_timeout_s,
        event_capacity=event_capacity,
        busy_servers=min(welcome.size, len(welcome.servers)),
    )
    if beacon is not None:
        worker.add_beacon(beacon())
    worker.start()
    try:
        for server in range(len(welcome.servers)):
            for lane in range(welcome.settings.lanes):
                worker.add_link(server, lane, link(server, lane))
        meet_neighbours(entrance, config, welcome, worker)
    except BaseException:
        worker.close()
        raise
    return worker


@dataclass(frozen=True, slots=True)
class SocketLinker:
    """Opens authenticated links to the servers that a ``Welcome`` names: over TCP, or through memory."""

    config: Config
    welcome: Welcome
    _told: set[str] = field(default_factory=set)
    _ucx: Library = field(default_factory=Library)

    def __call__(self, server: int, lane: int) -> _native.Link:
        """Connect to one server.

        Raises:
            JoinError, HandshakeError: it cannot be reached, or is not of this job.
        """
        address = self.welcome.servers[server]
        # It listened before it joined, and all have joined: one that does not answer is lost.
        limit_s = self.config.peer_timeout_s
        try:
            sock = connect(address.host, address.port, limit_s)
        except ConnectionError as error:
            raise JoinError(
                f"worker {self.welcome.rank} cannot reach server {server}: {error}; look at the server's "
                f"log, the firewall, and BYTEPS_INTERFACE on the server's host"
            ) from error
        identity = data_identity(self.config, self.welcome, lane)
        try:
            peer = handshake(sock, connect_steps(load_token(self.config), identity), limit_s)
            meeting = meet_server(sock, self.config, identity, peer, limit_s, self._ucx)
        except HandshakeError as error:
            sock.close()
            raise HandshakeError(
                f"server {server} did not let worker {self.welcome.rank} in: {error}"
            ) from error
        except BaseException:
            sock.close()
            raise
        self._tell(server, meeting)
        return meeting.link

    def _tell(self, server: int, meeting: Meeting) -> None:
        _log.info("worker %d reaches server %d by %s", self.welcome.rank, server, meeting.transport)
        if meeting.reason and meeting.reason not in self._told:
            self._told.add(meeting.reason)
            _log.warning(
                "worker %d and server %d are on one host and could share memory, but go through TCP: %s",
                self.welcome.rank,
                server,
                meeting.reason,
            )


def refuse_encryption(config: Config) -> None:
    """Data links are authenticated, not encrypted; say so instead of pretending.

    Raises:
        ConfigError: ``encrypt_data`` is set.
    """
    if config.encrypt_data:
        raise ConfigError(
            "encrypt_data is set, but data links cannot be encrypted by byteps: run the job inside a "
            "WireGuard network, or unset BYTEPS_ENCRYPT_DATA; the control plane can use TLS (tls_cert, "
            "tls_key, tls_ca)"
        )
