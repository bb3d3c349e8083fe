"""Two emulated hosts: network namespaces with a cable between them. Needs root and iproute2."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence


class TwoHosts:
    """Use as a context manager; the hosts are gone afterwards.

    Attributes:
        addresses: of the hosts' only network interfaces besides loopback.
    """

    def __init__(self) -> None:
        # Named after the process, so that two test runs on one machine do not meet.
        self._names = [f"bps{os.getpid()}h{node}" for node in range(2)]
        self.addresses = [f"10.79.0.{node + 1}" for node in range(2)]

    def on(self, node: int, command: Sequence[str]) -> list[str]:
        """The command that runs ``command`` on a host."""
        return ["ip", "netns", "exec", self._names[node], *command]

    def __enter__(self) -> TwoHosts:
        first, second = self._names
        try:
            for name in self._names:
                _ip("netns", "add", name)
                _ip("-n", name, "link", "set", "lo", "up")
            _ip(
                "link", "add", "eth0", "netns", first, "type", "veth", "peer", "name", "eth0", "netns", second
            )
            for name, address in zip(self._names, self.addresses, strict=True):
                _ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
                _ip("-n", name, "link", "set", "eth0", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for name in self._names:
            subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)


def _ip(*words: str) -> None:
    try:
        subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise RuntimeError("this test needs the command ip: apt-get install iproute2") from error
    except subprocess.CalledProcessError as error:
        raise RuntimeError(f"ip {' '.join(words)} failed: {error.stderr}") from error
