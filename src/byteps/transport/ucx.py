"""Links through UCX, for RDMA: the library as a process has it open, and what to do where that fails."""

from __future__ import annotations

import os
import resource
import socket

from byteps import _native
from byteps.config import Config

_DEVICES = "/dev/infiniband"


class NoUcx(Exception):
    """Why UCX cannot be used, and what to do about it."""


class Library:
    """UCX, loaded when it is first needed. All links of a process share it."""

    def __init__(self) -> None:
        self._ucx: _native.Ucx | None = None

    def open(self, config: Config) -> _native.Ucx:
        """Load it.

        Raises:
            NoUcx: it is not there, or finds no device.
        """
        if self._ucx is None:
            try:
                self._ucx = _native.open_ucx(config.transport_polling)
            except RuntimeError as error:
                raise NoUcx(f"{error}; {_advice(str(error))}") from error
        return self._ucx

    def open_port(self, config: Config) -> _native.UcxPort:
        """Begin a link.

        Raises:
            NoUcx: as above, or the devices refuse.
        """
        ucx = self.open(config)
        try:
            return ucx.open_port()
        except RuntimeError as error:
            raise NoUcx(f"{error}; {_advice(str(error))}") from error


def connect(port: _native.UcxPort, sock: socket.socket, address: bytes, limit_s: float) -> _native.Link:
    """The link, once both ends have heard of each other through it. It owns the connection.

    Args:
        port: this end.
        sock: the connection over which the two met; it shows when the other end is gone.
        address: the other end's.
        limit_s: how long it may take.

    Raises:
        NoUcx: there is no way to the other end.
    """
    try:
        return port.connect(sock.detach(), address, limit_s)
    except RuntimeError as error:
        raise NoUcx(
            f"the two cannot reach each other through UCX: {error}; UCX_TLS and UCX_NET_DEVICES must allow "
            f"both ends a common transport (`byteps doctor` and `ucx_info -d` list what a host has)"
        ) from error


def locked_memory_is_short() -> bool:
    """Whether RDMA devices are present and this process may lock less memory than they need."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return os.path.isdir(_DEVICES) and soft != resource.RLIM_INFINITY


def _advice(problem: str) -> str:
    if "built without" in problem:
        return (
            "install UCX's headers (apt-get install libucx-dev) and build byteps anew with "
            "BYTEPS_USE_RDMA=1, or set BYTEPS_TRANSPORT=auto"
        )
    if "cannot be loaded" in problem or "lacks" in problem:
        return "install UCX 1.13 or newer (apt-get install libucx0), or set BYTEPS_TRANSPORT=auto"
    if locked_memory_is_short():
        return "RDMA needs to lock memory: raise the limit (ulimit -l unlimited, LimitMEMLOCK=infinity)"
    return (
        "UCX_TLS and UCX_NET_DEVICES name what it may use; `ucx_info -d` lists what this host has "
        "(/dev/infiniband must be there for RDMA)"
    )
