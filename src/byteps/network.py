"""TCP sockets, and which of this host's addresses to listen on and to tell others."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import ipaddress
import socket
import struct
import time

from byteps.config import Config, format_address, parse_address
from byteps.errors import BytePSError, ConfigError, remedy

__all__ = [
    "advertised_address",
    "bind_address",
    "connect",
    "format_address",
    "interfaces",
    "listen",
    "loopback",
    "parse_address",
    "tune",
]

_LOOPBACK, _LOOPBACK_IPV6 = "127.0.0.1", "::1"
_BACKLOG = 1024
# Any port does: connecting a datagram socket sends nothing, it only asks the kernel for a route.
_PROBE_PORT = 9
_SIOCGIFADDR = 0x8915
_IFREQ = struct.Struct("16s24s")
_IPV6_TABLE = "/proc/net/if_inet6"
_LINK_LOCAL_SCOPE = 0x20


def interfaces() -> dict[str, tuple[str, ...]]:
    """The addresses of this host's network interfaces: IPv4 first, then IPv6, link-local ones last."""
    found: dict[str, list[str]] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = _IFREQ.pack(name.encode(), b"")
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:
                found[name] = []  # an interface without an IPv4 address
            else:
                found[name] = [socket.inet_ntoa(answer[20:24])]
    for name, address in _ipv6_addresses():
        found.setdefault(name, []).append(address)
    return {name: tuple(addresses) for name, addresses in found.items()}


def loopback() -> str:
    """This host's loopback address: IPv6's where that is the only one."""
    return _LOOPBACK if _is_own(_LOOPBACK) or not _is_own(_LOOPBACK_IPV6) else _LOOPBACK_IPV6


def bind_address(config: Config) -> str:
    """The address to listen on.

    The first that is known of: ``bind_host``; the interface's address; ``advertise_host`` if it is an address
    of this host (else all addresses, as it is then translated); the address that leads to the coordinator;
    loopback.

    Raises:
        ConfigError: the interface does not exist or has no address, or no route leads to the coordinator.
    """
    if config.bind_host:
        return config.bind_host
    coordinator = parse_address(config.coordinator)[0] if config.coordinator else ""
    if config.interface:
        return _interface_address(config.interface, coordinator)
    if config.advertise_host:
        if _is_own(config.advertise_host):
            return config.advertise_host
        return "::" if ":" in config.advertise_host else "0.0.0.0"
    return _source_address(coordinator) if coordinator else loopback()


def advertised_address(config: Config, peer: str) -> str:
    """The address under which others reach this process.

    The first that is known of: ``advertise_host``; the interface's address; ``bind_host`` if it is one
    address; the address that leads to ``peer``; loopback.

    Args:
        config: the settings.
        peer: host of the coordinator, empty when there is none yet.

    Raises:
        ConfigError: the interface does not exist or has no address, or no route leads to the peer.
    """
    if config.advertise_host:
        return config.advertise_host
    if config.interface:
        return _interface_address(config.interface, peer)
    if config.bind_host and not _is_wildcard(config.bind_host):
        return config.bind_host
    return _source_address(peer) if peer else loopback()


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket. A port whose last owner was killed can be taken again at once.

    Args:
        host: address or name; "" or "::" for all addresses of both families.
        port: 0 to let the kernel choose; ``getsockname()`` tells which.

    Raises:
        ConfigError: the address is not this host's, or the port is taken.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host or _everywhere(), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(f"cannot listen on {format_address(host, port)}: {error}") from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not _is_wildcard(host))
        tune(sock)
        sock.bind(address)
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        raise ConfigError(
            f"cannot listen on {format_address(host, port)}: {error.strerror}; choose an address of this "
            f"host (BYTEPS_BIND_HOST, BYTEPS_INTERFACE) and a free port"
        ) from error
    return sock


def connect(host: str, port: int, timeout_s: float) -> socket.socket:
    """Open a connection, trying all addresses of the host in turn.

    Args:
        host: address or name.
        port: port number.
        timeout_s: for all attempts together.

    Returns:
        A blocking socket without a timeout.

    Raises:
        ConnectionError: nobody answered at any address in time; trying again later may help.
        BytePSError: this process has no file descriptor left.
    """
    where = format_address(host, port)
    end = time.monotonic() + timeout_s
    failure: OSError = ConnectionError("the name has no address")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConnectionError(f"cannot connect to {where}: {error}") from error
    for family, kind, protocol, _, address in found:
        try:
            sock = socket.socket(family, kind, protocol)
        except OSError as error:
            if remedy(error):
                raise BytePSError(f"cannot connect to {where}: {error.strerror}{remedy(error)}") from error
            failure = error  # a kernel without IPv6
            continue
        try:
            tune(sock)
            sock.settimeout(max(end - time.monotonic(), 1e-6))
            sock.connect(address)
            _refuse_self(sock)
        except OSError as error:
            sock.close()
            failure = error
        else:
            sock.settimeout(None)
            return sock
    raise ConnectionError(f"cannot connect to {where}: {failure}") from failure


def tune(sock: socket.socket) -> None:
    """Send small frames at once, and use cubic where the host allows it: its share of a link is even."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # Where the kernel lacks it, or does not allow it to this user, the host's own choice stays.
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")


def _ipv6_addresses() -> list[tuple[str, str]]:
    """Interface and address of each IPv6 address, link-local ones last; empty without IPv6 or /proc."""
    try:
        with open(_IPV6_TABLE) as table:
            rows = [line.split() for line in table]
    except OSError:  # no IPv6, or no /proc to tell
        return []
    rows.sort(key=lambda row: int(row[3], 16) == _LINK_LOCAL_SCOPE)
    found = []
    for digits, _, _, scope, _, name in rows:
        address = str(ipaddress.IPv6Address(bytes.fromhex(digits)))
        found.append((name, f"{address}%{name}" if int(scope, 16) == _LINK_LOCAL_SCOPE else address))
    return found


def _interface_address(name: str, peer: str) -> str:
    """The interface's first address, of the peer's family if it has one."""
    known = interfaces()
    if name not in known:
        raise ConfigError(
            f"there is no network interface {name!r} on this host; it has {', '.join(sorted(known))}"
        )
    if not known[name]:
        raise ConfigError(f"the network interface {name!r} has no address")
    alike = [address for address in known[name] if (":" in address) == (":" in peer)]
    return (alike or known[name])[0]


def _source_address(peer: str) -> str:
    """The address of this host from which packets to the peer leave."""
    advice = "; check the coordinator's address, or set BYTEPS_INTERFACE"
    try:
        found = socket.getaddrinfo(peer, _PROBE_PORT, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise ConfigError(f"no route to {peer}: {error}{remedy(error) or advice}") from error


def _refuse_self(sock: socket.socket) -> None:
    """Refuse a connection to itself: the port tried may be the very one that the kernel gave this socket."""
    if sock.getsockname() == sock.getpeername():
        raise ConnectionRefusedError(errno.ECONNREFUSED, "nobody listens there")


def _is_own(host: str) -> bool:
    """Whether a socket of this host could be bound to the address."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True


def _everywhere() -> str:
    return "::" if socket.has_dualstack_ipv6() else "0.0.0.0"


def _is_wildcard(host: str) -> bool:
    try:
        return not host or ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
