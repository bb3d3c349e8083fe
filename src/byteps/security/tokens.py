"""The shared token, and who may listen where without one."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import secrets
import socket

from byteps.config import Config
from byteps.errors import ConfigError

_log = logging.getLogger("byteps.security")
_TOKEN_BYTES = 32
_READABLE_BY_OTHERS = 0o077


def token_to_make(config: Config) -> str:
    """A fresh random token, as text that fits an environment variable; empty where one is configured.

    Raises:
        ConfigError: servers elsewhere are to join, which could not know it.
    """
    if config.auth_token or config.auth_token_file:
        return ""
    if config.extra_servers:
        raise ConfigError(
            f"extra_servers = {config.extra_servers} needs a token that those servers have too: set "
            f"BYTEPS_AUTH_TOKEN_FILE here and there"
        )
    return secrets.token_hex(_TOKEN_BYTES)


def load_token(config: Config) -> bytes:
    """The job's shared secret; empty when none is configured.

    Raises:
        ConfigError: the token file cannot be read or is empty.
    """
    if not config.auth_token_file:
        return config.auth_token.encode()
    path = config.auth_token_file
    try:
        with open(path, "rb") as file:
            token = file.read().strip()
    except OSError as error:
        raise ConfigError(f"cannot read the token file {path}: {error.strerror}") from error
    if not token:
        raise ConfigError(f"the token file {path} is empty; write a secret into it, such as 64 random digits")
    return token


def token_is_open(path: str) -> bool:
    """Whether other users may read or write the token file."""
    return bool(os.stat(path).st_mode & _READABLE_BY_OTHERS)


def warn_of_open_token(config: Config) -> None:
    """Log that others may read the token. Each member of a job does so once, before it opens connections."""
    path = config.auth_token_file
    with contextlib.suppress(OSError):  # who reads it says what is wrong
        if path and token_is_open(path):
            _log.warning("the token file %s is open to other users; run: chmod 600 %s", path, path)


def check_bind(host: str, token: bytes, insecure: bool) -> None:
    """Refuse to listen where strangers may connect when nothing would keep them out.

    Args:
        host: the address or host name to listen on; empty for all addresses.
        token: the job's secret, empty for none.
        insecure: whether the user has accepted the risk.

    Raises:
        ConfigError: the address is not a loopback one and there is neither token nor consent.
    """
    if token or _is_loopback(host):
        return
    where = host or "all addresses"
    if not insecure:
        raise ConfigError(
            f"refusing to listen on {where} without a token: anyone who can connect could join the job; "
            f"set BYTEPS_AUTH_TOKEN_FILE or BYTEPS_AUTH_TOKEN on all processes, or accept it with --insecure"
        )
    _log.warning("listening on %s without a token: anyone who can connect can join the job", where)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM) if host else []
    except OSError:
        return False
    return bool(found) and all(ipaddress.ip_address(entry[4][0]).is_loopback for entry in found)
