"""What this host offers: limits, shared memory, congestion control, clocks."""

from __future__ import annotations

import os
import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from byteps.config import Config
from byteps.doctor.findings import Finding, fail, ok, warn

_OWN_FILES = 32
_COMFORTABLE_FILES = 1024
_LEAST_SHM_BYTES = 256 << 20
_JUMP_S = 0.05
_CONGESTION = "cubic"


class Clocks:
    """Watches whether the wall clock is set while the doctor works."""

    def __init__(self) -> None:
        self._begin_s = time.time() - time.monotonic()

    def check(self) -> Finding:
        """Compare with the beginning."""
        jump_s = time.time() - time.monotonic() - self._begin_s
        if abs(jump_s) > _JUMP_S:
            return warn(
                "clock",
                f"the wall clock jumped by {jump_s:+.3f} s while this ran",
                "let one time service slew it (chrony): the times in logs follow the wall clock",
            )
        return ok("clock", "monotonic and wall clock run alike")


def check_host(config: Config) -> Iterator[Finding]:
    """Look at what the operating system grants."""
    yield _open_files(config)
    yield _shared_memory(Path("/dev/shm"))
    yield _congestion_control()


def files_needed(config: Config) -> int:
    """Descriptors that one process of the job needs: its connections, and what any process has open."""
    peers = max(config.size, config.num_servers, 1)
    return _OWN_FILES + peers * (config.connections or 2)  # automatic: two at most


def _open_files(config: Config) -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = files_needed(config)
    text = f"{_limit(soft)} (hard limit {_limit(hard)}), this job needs about {needed} in a process"
    if soft == resource.RLIM_INFINITY or soft >= max(needed, _COMFORTABLE_FILES):
        return ok("open files", text)
    advice = f"raise it: ulimit -n {max(4 * needed, _COMFORTABLE_FILES)}, or LimitNOFILE= in the service"
    return (fail if soft < needed else warn)("open files", text, advice)


def _shared_memory(folder: Path) -> Finding:
    advice = "mount it larger (docker run --shm-size=8g): DataLoader workers pass batches through it"
    try:
        space = os.statvfs(folder)
    except OSError as error:
        return warn("shared memory", f"{folder}: {error.strerror}", advice)
    free, total = (blocks * space.f_frsize for blocks in (space.f_bavail, space.f_blocks))
    text = f"{folder}: {free >> 20} of {total >> 20} MiB free"
    if not os.access(folder, os.W_OK):
        return warn("shared memory", f"{folder} is not writable", "mount it as tmpfs with mode 1777")
    return warn("shared memory", text, advice) if free < _LEAST_SHM_BYTES else ok("shared memory", text)


def _congestion_control() -> Finding:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        own = _name(probe)
        try:
            probe.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _CONGESTION.encode())
        except OSError as error:
            return warn(
                "congestion control",
                f"{own}: {_CONGESTION} cannot be chosen ({error.strerror})",
                f"allow it: sysctl net.ipv4.tcp_allowed_congestion_control='reno {_CONGESTION}'",
            )
    return ok("congestion control", f"{_CONGESTION} (the host's own choice is {own})")


def _name(sock: socket.socket) -> str:
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)
