"""The textual form of a network address: ``host:port``, IPv6 hosts in brackets."""

from __future__ import annotations

from byteps.errors import ConfigError


def format_address(host: str, port: int) -> str:
    """Join a host and a port number: ``10.0.0.1:80``, ``[::1]:80``."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_address(text: str) -> tuple[str, int]:
    """Split ``host:port`` or ``[ipv6]:port``.

    Raises:
        ConfigError: the host is missing, an IPv6 host has no brackets, or the port is not 0..65535.
    """
    host, separator, port = text.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host or "[" in host or "]" in host:
        raise ConfigError(f"address {text!r}: write an IPv6 host in brackets, as in [::1]:4000")
    if not separator or not host or not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ConfigError(f"address {text!r}: expected host:port with a port number from 0 to 65535")
    return host, int(port)
