"""How the ranks of a torchrun job learn where rank 0's coordinator is: through the job's TCPStore."""

from __future__ import annotations

import dataclasses
import json
import logging
import time
from collections.abc import Mapping
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, but not in its __all__

from byteps.config import Config, child_environment, parse_address
from byteps.errors import BytePSError, ConfigError, HandshakeError, JoinError
from byteps.network import connect
from byteps.security import Identity, connect_steps, handshake, load_token

_log = logging.getLogger("byteps.torch")

_ANSWER_TIMEOUT_S = 5.0
_CLOCK_SLACK_S = 0.01


@dataclasses.dataclass(frozen=True, slots=True)
class Invitation:
    """What rank 0 tells the others.

    Attributes:
        coordinator: the coordinator's address, "host:port".
        token: the job's fresh token; "" where one is configured on every rank.
    """

    coordinator: str
    token: str


def master_address(variables: Mapping[str, str]) -> tuple[str, int]:
    """Host and port of the job's store.

    Raises:
        ConfigError: MASTER_ADDR or MASTER_PORT is not set or is no address.
    """
    host, port = (variables.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT"))
    if not host or not port.isdigit():
        raise ConfigError(
            f"MASTER_ADDR is {host!r} and MASTER_PORT is {port!r}, so the ranks cannot find each other; "
            f"start with torchrun or `byteps run`, or set BYTEPS_COORDINATOR"
        )
    return host, int(port)


def receive(config: Config) -> Invitation:
    """On a rank other than 0: wait for the invitation.

    Raises:
        JoinError: it did not come within ``join_timeout_s``, or the store is gone.
    """
    deadline = time.monotonic() + config.join_timeout_s
    while True:
        try:
            return Board(config, deadline).receive()
        except BytePSError:
            raise
        except RuntimeError as error:
            # Rank 0's own store goes when rank 0 shuts down, and comes back when it initialises again.
            if _is_kept_by_agent(child_environment({})) or time.monotonic() >= deadline:
                raise JoinError(f"rank {config.rank} lost the job's store while joining: {error}") from error


def _is_kept_by_agent(variables: Mapping[str, str]) -> bool:
    """Whether torchrun's agent keeps the store, so that every rank is its client."""
    return variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


class Board:
    """The job's store, where rank 0 pins up invitations with rising numbers.

    The store may outlive a group of workers: after torchrun's restart the old invitations still hang there,
    and the nodes may count restarts differently. So a rank takes no invitation that it or its predecessor
    took, and none to a coordinator that is gone.
    """

    def __init__(self, config: Config, deadline: float) -> None:
        """Open the store of the job; rank 0 hosts it unless torchrun does.

        Args:
            config: the settings of this rank.
            deadline: until when to wait for anything, by ``time.monotonic()``.

        Raises:
            ConfigError: the store's address is not set.
            JoinError: it cannot be opened.
        """
        self._config = config
        self._deadline = deadline
        variables = child_environment({})
        host, port = master_address(variables)
        self._prefix = f"byteps/{config.job_id}/{variables.get('TORCHELASTIC_RUN_ID', '')}/"
        try:
            # Several tenants: a later init_process_group shares the store of this process.
            self._store = TCPStore(
                host,
                port,
                is_master=config.rank == 0 and not _is_kept_by_agent(variables),
                timeout=self._left(),
                wait_for_workers=False,
                multi_tenant=True,
            )
        except RuntimeError as error:
            raise JoinError(
                f"rank {config.rank} cannot open the job's store at "
                f"MASTER_ADDR={host}, MASTER_PORT={port}: {error}"
            ) from error

    def publish(self, invitation: Invitation) -> None:
        """Pin up an invitation under the next number."""
        number = self._store.add(self._prefix + "count", 0) + 1
        self._store.set(f"{self._prefix}{number}", json.dumps(dataclasses.asdict(invitation)))
        self._store.add(self._prefix + "count", 1)

    def receive(self) -> Invitation:
        """Wait for an invitation that is meant for this rank.

        Raises:
            JoinError: none came before the deadline.
            HandshakeError: the configured tokens differ.
            RuntimeError: the store is gone.
        """
        taken = f"{self._prefix}taken/{self._config.rank}"
        last = self._store.add(taken, 0)
        number = max(last + 1, self._store.add(self._prefix + "count", 0))
        tried = ""
        while True:
            self._wait(f"{self._prefix}{number}", tried)
            invitation = Invitation(**json.loads(self._store.get(f"{self._prefix}{number}")))
            if _answers(self._config, invitation):
                self._store.add(taken, number - last)
                return invitation
            tried = (
                f"; the coordinator at {invitation.coordinator}, which it started earlier, does not answer"
            )
            number += 1

    def _wait(self, key: str, tried: str) -> None:
        """Wait until the key is there, saying after a while what is waited for."""
        warning_s = self._config.stall_warning_s
        if warning_s and not self._is_there(key, min(timedelta(seconds=warning_s), self._left())):
            _log.warning("rank %d waits for rank 0 to call init()%s", self._config.rank, tried)
        if not self._is_there(key, self._left()):
            raise JoinError(
                f"rank {self._config.rank} waited {self._config.join_timeout_s:g} s (join_timeout_s) "
                f"for rank 0 to call init(){tried}"
            )

    def _is_there(self, key: str, timeout: timedelta) -> bool:
        """Wait for a key. Not in time and gone are the same error of the store; the clock tells which."""
        end = time.monotonic() + timeout.total_seconds() - _CLOCK_SLACK_S
        try:
            self._store.wait([key], timeout)
        except RuntimeError:
            if time.monotonic() < end:
                raise
            return False
        return True

    def _left(self) -> timedelta:
        # The store takes whole milliseconds and understands 0 as its default.
        return timedelta(seconds=max(0.01, self._deadline - time.monotonic()))


def _answers(config: Config, invitation: Invitation) -> bool:
    """Whether the coordinator that was meant is still there.

    Raises:
        HandshakeError: it is, but the tokens that both have configured differ.
    """
    host, port = parse_address(invitation.coordinator)
    token = invitation.token.encode() or load_token(config)
    # A heartbeat connection means nothing before its rank has joined.
    identity = Identity(role="worker", number=config.rank, job_id=config.job_id, purpose="beacon")
    try:
        with connect(host, port, _ANSWER_TIMEOUT_S) as sock:
            handshake(sock, connect_steps(token, identity))
    except ConnectionError:
        return False
    except HandshakeError:
        if not invitation.token:
            raise
        return False  # a fresh token fits one coordinator only, so something else has that port now
    return True
