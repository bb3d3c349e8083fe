"""Unix sockets in the abstract namespace: known to one network namespace, and gone with their processes."""

from __future__ import annotations

import os
import secrets
import socket
import struct

from byteps.errors import HandshakeError

_CREDENTIALS = struct.Struct("3i")


def listen_locally(backlog: int) -> tuple[socket.socket, str]:
    """A listening socket with a random name, and that name.

    Raises:
        OSError: There are no such sockets here.
    """
    name = f"byteps-{secrets.token_hex(16)}"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(local_address(name))
        listener.listen(backlog)
    except BaseException:
        listener.close()
        raise
    return listener, name


def local_address(name: str) -> str:
    """What to connect to."""
    return f"\0{name}"


def check_user(sock: socket.socket) -> None:
    """Memory is shared only between processes of one user.

    Raises:
        HandshakeError: The other end is another user's.
    """
    packed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(packed)
    if user != os.geteuid():
        raise HandshakeError(f"user {user} is at the other end, this process is user {os.geteuid()}'s")
