"""What is configured: odd variables, token, TLS files, and the addresses that follow from the settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from byteps.config import Config, parse_address
from byteps.doctor.findings import Finding, fail, ok, warn
from byteps.errors import BytePSError
from byteps.network import advertised_address, bind_address, interfaces
from byteps.security import check_bind, client_tls, token_is_open
from byteps.security import load_token as load

_SHORT_TOKEN_BYTES = 16
_MAKE_TOKEN = "(umask 077; python3 -c 'import secrets; print(secrets.token_hex(32))' >token)"


def check_settings(config: Config, warnings: Sequence[str]) -> Iterator[Finding]:
    """Look at the settings in force.

    Args:
        config: the settings.
        warnings: what was odd about the variables and the file that they come from.
    """
    for warning in warnings:
        yield warn("variables", warning, "correct or unset it; `byteps config` shows all values")
    if not warnings:
        yield ok("variables", "no unknown or ignored names")
    yield from _token(config)
    yield _tls(config)
    yield _interfaces()
    yield _addresses(config)


def _token(config: Config) -> Iterator[Finding]:
    try:
        token = load(config)
    except BytePSError as error:
        yield fail("token", str(error), f"make one and copy it to all hosts: {_MAKE_TOKEN}")
        return
    where = f"the file {config.auth_token_file}" if config.auth_token_file else "the environment"
    if not token:
        yield ok("token", "none: processes listen on loopback only; `byteps run` and torchrun make their own")
    elif len(token) < _SHORT_TOKEN_BYTES:
        yield warn(
            "token", f"{len(token)} bytes from {where}: easy to guess", f"make a long one: {_MAKE_TOKEN}"
        )
    elif config.auth_token_file and token_is_open(config.auth_token_file):
        yield warn("token", f"{where} is open to other users", f"chmod 600 {config.auth_token_file}")
    else:
        yield ok("token", f"{len(token)} bytes from {where}")


def _tls(config: Config) -> Finding:
    try:
        context = client_tls(config)
    except BytePSError as error:
        return fail("TLS", str(error), "check the three files tls_cert, tls_key and tls_ca")
    return ok("TLS", "off" if context is None else "on for the control plane, files are readable")


def _interfaces() -> Finding:
    try:
        known = interfaces()
    except OSError as error:
        return warn("interfaces", f"cannot be listed: {error}", "set BYTEPS_BIND_HOST")
    return ok("interfaces", "; ".join(f"{name} {', '.join(found) or '-'}" for name, found in known.items()))


def _addresses(config: Config) -> Finding:
    """Where a server on this host would listen, and what it would tell others."""
    coordinator = parse_address(config.coordinator)[0] if config.coordinator else ""
    try:
        host = bind_address(config)
        told = advertised_address(config, coordinator)
        check_bind(host, load(config), config.insecure)
    except BytePSError as error:
        return fail("addresses", str(error), "docs/running.md, Interfaces and addresses")
    return ok("addresses", f"a server here listens on {host} and is reached at {told}")
