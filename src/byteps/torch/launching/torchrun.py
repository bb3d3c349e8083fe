"""Training under torchrun with nothing set: servers and coordinator as children of the workers.

Local rank 0 of each node starts the node's server; rank 0 also starts the coordinator. Where it listens, and
the token, travel through the job's TCPStore (``invitations``).
"""

from __future__ import annotations

import dataclasses
import ipaddress
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping

from byteps.children import ChildRole, as_environment
from byteps.config import Config, child_environment, format_address
from byteps.diagnostics import count
from byteps.errors import ConfigError
from byteps.network import advertised_address, loopback
from byteps.security import token_to_make
from byteps.torch.launching.invitations import Board, Invitation, master_address, receive

_READY_TIMEOUT_S = 60.0
_PATIENCE_S = 1.0
# An address for documentation: nothing is sent there, it only makes the kernel name the default route.
_ELSEWHERE = "192.0.2.1"
_log = logging.getLogger("byteps.torch")
_IDENTITY = ("rank", "size", "local_rank", "local_size", "nodes", "node_rank")


def discover(config: Config) -> tuple[Config, Callable[[], None]]:
    """Start this rank's share of servers and coordinator, and find the coordinator.

    Args:
        config: the settings of this rank.

    Returns:
        The settings with ``coordinator``, ``num_servers`` and, unless one is configured, ``auth_token``; and
        a function to call when this rank has left the job, or could not join it.

    Raises:
        ConfigError: settings of this rank and of rank 0 do not fit, or the store's address is not set.
        JoinError: rank 0 did not say in time where the coordinator is.
        BytePSError: a child could not be started.
    """
    children = _Children()
    try:
        if config.size > 1 or config.force_distributed:
            config = _colocate(config, children)
    except BaseException:
        children.see_off()
        raise
    return config, children.see_off


class _Children:
    """The coordinator and servers that this rank has started."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._children: list[ChildRole] = []
        self._board: Board | None = None

    def start(self, role: str, settings: Mapping[str, object], *options: str) -> ChildRole:
        """Start one."""
        child = ChildRole(role, as_environment(settings), options=options)
        self._children.append(child)
        return child

    def keep(self, board: Board) -> None:
        """Hold on to the job's store, which ends if this rank hosts it and lets go."""
        self._board = board

    def see_off(self) -> None:
        """This rank has left: its children stay until the others have left too, then end by themselves.

        If the job never came together they are ended at once.
        """
        if os.getpid() != self._owner:
            return  # a fork of the worker: they are not its children
        # A server is ready when all ranks have joined. Without servers nobody can tell; a coordinator ends by
        # itself when its members have gone.
        servers = [child for child in self._children if child.role == "server"]
        joined = not servers or any(server.is_ready() for server in servers)
        # A rank that fails has to be seen to end before its leaving makes the others fail.
        patience_s = 0.0 if hasattr(sys, "last_value") else _PATIENCE_S
        end = time.monotonic() + patience_s
        for child in reversed(self._children):
            if not joined:
                child.terminate()
            elif child.wait(end - time.monotonic()) is None:
                child.release()
        self._board = None


def _colocate(config: Config, children: _Children) -> Config:
    """Do what ``discover`` says for a job of several ranks."""
    per_node = _servers_per_node(config)
    config = dataclasses.replace(config, num_servers=per_node * _nodes(config) + config.extra_servers)
    joined = _accept(config, _invite(config, children) if config.rank == 0 else receive(config))
    if config.local_rank <= 0:
        node = config.rank if config.local_rank < 0 else config.node_rank
        for number in range(node * per_node, (node + 1) * per_node):
            rank = number if node >= 0 else ""
            children.start("server", {**_child_settings(joined), "rank": rank})
    return joined


def _nodes(config: Config) -> int:
    """The number of nodes; a rank that was not told its local rank counts as a node of its own."""
    if config.local_rank < 0:
        return config.size
    return config.nodes or -(-config.size // max(1, config.local_size))


def _servers_per_node(config: Config) -> int:
    nodes = _nodes(config)
    if config.communicator == "allreduce":
        return 0
    if config.num_servers % nodes:
        raise ConfigError(
            f"num_servers = {config.num_servers} cannot be spread evenly over {nodes} nodes; give a "
            f"multiple, or start dedicated servers (`byteps server`) and set BYTEPS_COORDINATOR"
        )
    return max(1, config.num_servers // nodes)


def _accept(config: Config, invitation: Invitation) -> Config:
    """The settings with what rank 0 said."""
    configured = bool(config.auth_token or config.auth_token_file)
    if configured == bool(invitation.token):
        has, lacks = (config.rank, 0) if configured else (0, config.rank)
        raise ConfigError(
            f"rank {has} has a token configured and rank {lacks} has none; set BYTEPS_AUTH_TOKEN_FILE or "
            f"BYTEPS_AUTH_TOKEN on all nodes or on none"
        )
    token = config.auth_token if configured else invitation.token
    return dataclasses.replace(config, coordinator=invitation.coordinator, auth_token=token)


def _invite(config: Config, children: _Children) -> Invitation:
    """On rank 0: start the coordinator and tell the others where it is."""
    master, _ = master_address(child_environment({}))
    token = token_to_make(config)
    settings = {
        **_child_settings(config),
        **({"auth_token": token} if token else {}),
        "size": config.size,
        "advertise_host": _coordinator_host(config, master),
    }
    child = children.start("coordinator", settings, "--port", str(config.port))
    host, port = child.wait_ready(_READY_TIMEOUT_S).split()
    invitation = Invitation(format_address(host, int(port)), token)
    if config.extra_servers:
        more, where = count(config.extra_servers, "more server"), invitation.coordinator
        _log.warning("start %s: BYTEPS_COORDINATOR=%s byteps server", more, where)
    board = Board(config, time.monotonic() + config.join_timeout_s)
    board.publish(invitation)
    children.keep(board)
    return invitation


def _coordinator_host(config: Config, master: str) -> str:
    """Where the other nodes reach this one: the address that leads to MASTER_ADDR.

    A host's own name may stand for a loopback address in its own table; nobody else could use that.
    """
    chosen = config.advertise_host or config.interface or config.bind_host
    local = _nodes(config) == 1 and not config.extra_servers
    if local and not chosen:
        return loopback()
    host = advertised_address(config, master)
    if chosen or not _is_loopback(host) or (_is_loopback(master) and not config.extra_servers):
        return host
    return advertised_address(config, _ELSEWHERE)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _child_settings(config: Config) -> dict[str, object]:
    """The settings that differ from their defaults, for a child; what describes this worker is blanked."""
    changed: dict[str, object] = dict.fromkeys(_IDENTITY, "")
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name not in (*_IDENTITY, "role", "launcher") and value != field.default:
            changed[field.name] = value
    return changed
