"""CPU time of the servers that run on this host.

The workers know each server's address. A server is on this host if the kernel's table of connections has its
end of the connections to it; the process that holds them is the server. Servers elsewhere, in another network
namespace, or of another user stay unknown.
"""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from byteps.wire import ServerAddress

Endpoint = tuple[str, int]

_TABLES = ("tcp", "tcp6")
_ESTABLISHED = "01"
_SOCKET = "socket:["


def local_servers(addresses: Sequence[ServerAddress], proc: Path = Path("/proc")) -> dict[int, int]:
    """Process ids of the servers on this host, by server number. This process must be connected to them.

    Args:
        addresses: of all servers of the job.
        proc: where the kernel shows processes.
    """
    numbers = {
        endpoint: number for number, address in enumerate(addresses) for endpoint in _endpoints(address)
    }
    inodes = {
        inode: numbers[endpoint] for endpoint, inode in _connections(proc / "net") if endpoint in numbers
    }
    found: dict[int, int] = {}
    for folder in proc.glob("[0-9]*") if inodes else ():
        with suppress(OSError):  # it has ended, or is another user's
            for entry in (folder / "fd").iterdir():
                number = inodes.get(_inode(entry))
                if number is not None:
                    found[number] = int(folder.name)
    return found


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has used so far, user and system, all threads.

    Raises:
        OSError: there is no such process.
    """
    # The clock of a process: the kernel's and libc's encoding of clock_getcpuclockid(3).
    return time.clock_gettime((~pid << 3) | 2)


def _endpoints(address: ServerAddress) -> Iterator[Endpoint]:
    with suppress(OSError):
        for *_, found in socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM):
            yield _plain(ipaddress.ip_address(str(found[0]).partition("%")[0])), address.port


def _connections(folder: Path) -> Iterator[tuple[Endpoint, int]]:
    """(local end, inode) of every TCP connection of this network namespace."""
    for table in _TABLES:
        try:
            lines = (folder / table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:  # no IPv6 here, or /proc may not be read
            continue
        for fields in map(str.split, lines):
            host, _, port = fields[1].partition(":")
            if fields[3] == _ESTABLISHED:
                yield (_address(host), int(port, 16)), int(fields[9])


def _address(text: str) -> str:
    """An address from the kernel's form: 32-bit words in hexadecimal, each with its last byte first."""
    raw = bytes.fromhex(text)
    return _plain(ipaddress.ip_address(b"".join(raw[i : i + 4][::-1] for i in range(0, len(raw), 4))))


def _plain(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _inode(entry: Path) -> int:
    """Of the socket that a file descriptor is; -1: it is something else, or closed by now."""
    try:
        target = str(entry.readlink())
    except OSError:
        return -1
    return int(target[len(_SOCKET) : -1]) if target.startswith(_SOCKET) else -1
