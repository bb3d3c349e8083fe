"""Emulated hosts: network namespaces on one bridge, each with a link of a given rate. Root and iproute2 only.

``python -m benchmarks.cluster run --hosts 2 --rate 1gbit -- COMMAND`` runs a command on each of them,
``python -m benchmarks.cluster clean`` removes what a killed process left behind.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from typing_extensions import Self

from benchmarks.hosts import Hosts

# The first number is the process that owns the namespace.
NAME = re.compile(r"byteps-(\d+)-(?:switch|host\d+)")
RATE = re.compile(r"(\d+(?:\.\d+)?)([kmg]?)bit")
PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}
MAX_HOSTS = 250
# Longest time that a packet waits in the queue before the link.
QUEUE = "20ms"
# A link must be able to take a whole segment of 64 KiB, and what it sends in a millisecond.
MIN_BURST_BYTES = 128 << 10
HOST_FILES = Path("/etc/netns")


class ClusterError(SystemExit):
    """The hosts cannot be made: ends the measurement with a text that says what to do."""


def bits_per_second(rate: str) -> float:
    """What a rate such as ``200mbit`` means.

    Raises:
        ValueError: It is no rate.
    """
    match = RATE.fullmatch(rate.lower())
    if match is None or float(match[1]) <= 0:
        raise ValueError(f"{rate!r} is no rate; write it like 200mbit or 1gbit")
    return float(match[1]) * PREFIXES[match[2]]


class Cluster(Hosts):
    """Hosts ``host0``, ``host1`` ... on one switch. Use it as a context manager: they are gone afterwards.

    Args:
        hosts: How many.
        rate: Of every host's link, in each direction; empty: as fast as the machine is.

    Raises:
        ClusterError: No root rights, no iproute2, or the kernel refuses.
        ValueError: A rate or number of hosts that cannot be.
    """

    interface = "eth0"

    def __init__(self, hosts: int = 4, rate: str = "1gbit") -> None:
        super().__init__()
        if not 1 <= hosts <= MAX_HOSTS:
            raise ValueError(f"{hosts} hosts: between 1 and {MAX_HOSTS} are possible")
        if rate:
            bits_per_second(rate)
        self.hosts = hosts
        self.rate = rate
        prefix = f"byteps-{os.getpid()}"
        self._switch = f"{prefix}-switch"
        self._names = [f"{prefix}-host{number}" for number in range(hosts)]

    def address(self, host: int) -> str:
        """The address of a host, counted from 0."""
        return f"10.77.0.{host + 1}"

    def set_rate(self, host: int, rate: str) -> None:
        """Change the rate of a host's link, both directions, also while traffic flows."""
        burst = max(MIN_BURST_BYTES, round(bits_per_second(rate) / 8 / 1000))
        shape = ["root", "tbf", "rate", rate, "burst", f"{burst}b", "latency", QUEUE]
        # The host's end of the cable is its way up, the switch's end its way down.
        for name, device in ((self._names[host], "eth0"), (self._switch, f"port{host}")):
            _call("tc", "-n", name, "qdisc", "replace", "dev", device, *shape)

    def nic_bytes(self, host: int) -> tuple[int, int]:
        """What a host's interface has sent and received so far, in bytes, headers included."""
        text = _call("ip", "-n", self._names[host], "-s", "-j", "link", "show", "dev", "eth0")
        counters = json.loads(text)[0]["stats64"]
        return counters["tx"]["bytes"], counters["rx"]["bytes"]

    def _on(self, host: int, command: Sequence[str]) -> list[str]:
        return ["ip", "netns", "exec", self._names[host], *command]

    def __enter__(self) -> Self:
        check_tools()
        super().__enter__()
        try:
            self._build()
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def __exit__(self, *error: object) -> None:
        # A second Ctrl-C must not stop the tidying up.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            super().__exit__(*error)
            for name in (*self._names, self._switch):
                remove(name)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _build(self) -> None:
        for name in (self._switch, *self._names):
            _call("ip", "netns", "add", name)
            _call("ip", "-n", name, "link", "set", "lo", "up")
        self._connect()
        for number, name in enumerate(self._names):
            _call("ip", "-n", name, "addr", "add", f"{self.address(number)}/24", "dev", "eth0")
            _call("ip", "-n", name, "link", "set", "dev", "eth0", "up")
            self._write_host_names(number)

    def _connect(self) -> None:
        """Give each host its ``eth0``."""
        _call("ip", "-n", self._switch, "link", "add", "bridge", "type", "bridge")
        _call("ip", "-n", self._switch, "link", "set", "bridge", "up")
        for number, name in enumerate(self._names):
            port = ("dev", f"port{number}")
            cable = ("type", "veth", "peer", "name", port[1], "netns", self._switch)
            _call("ip", "link", "add", "eth0", "netns", name, *cable)
            _call("ip", "-n", self._switch, "link", "set", *port, "master", "bridge", "up")
            if self.rate:
                self.set_rate(number, self.rate)

    def _write_host_names(self, number: int) -> None:
        """What ``ip netns exec`` shows as /etc/hosts. To each host, this machine's name is its own."""
        lines = ["127.0.0.1 localhost", "::1 localhost", f"{self.address(number)} {socket.gethostname()}"]
        lines += [f"{self.address(other)} host{other}" for other in range(self.hosts)]
        folder = HOST_FILES / self._names[number]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "hosts").write_text("\n".join(lines) + "\n", encoding="utf-8")


def remove(name: str) -> None:
    """End what runs in a namespace and delete it, if it is there."""
    pids = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False).stdout
    for pid in map(int, pids.split()):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)
    shutil.rmtree(HOST_FILES / name, ignore_errors=True)


def clean() -> list[str]:
    """Remove the namespaces whose owner is gone; returns their names."""
    check_tools()
    listed = {line.split()[0] for line in _call("ip", "netns", "list").splitlines() if line}
    listed |= {path.name for path in HOST_FILES.glob("byteps-*")}
    owners = {name: match[1] for name in listed if (match := NAME.fullmatch(name))}
    left = sorted(name for name, pid in owners.items() if not Path("/proc", pid).exists())
    for name in left:
        remove(name)
    return left


def check_tools() -> None:
    """Raise ClusterError unless hosts can be made here."""
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            raise ClusterError(f"emulated hosts need the command {tool}: apt-get install iproute2")
    if os.geteuid() != 0:
        raise ClusterError("emulated hosts need root rights (network namespaces): run this as root")


def _call(*words: str) -> str:
    # A session of its own: a Ctrl-C on the terminal must not break off a command half way.
    result = subprocess.run(words, check=False, capture_output=True, text=True, start_new_session=True)
    if result.returncode != 0:
        raise ClusterError(f"{' '.join(words)} failed: {result.stderr.strip()}")
    return result.stdout


def run_everywhere(hosts: int, rate: str, command: Sequence[str]) -> int:
    """Run a command on each host; {host} in it is the number. Returns the first exit code that is not 0."""
    with Cluster(hosts, rate) as cluster:
        processes = [
            cluster.run(number, [word.replace("{host}", str(number)) for word in command], stdout=None)
            for number in range(hosts)
        ]
        codes = [process.wait() for process in processes]
    return next((code if code > 0 else 128 - code for code in codes if code != 0), 0)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster", description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run a command on each host; {host} in it becomes its number")
    run.add_argument("--hosts", type=int, default=2, help="how many (default: 2); named host0, host1 ...")
    run.add_argument("--rate", default="1gbit", help="of each link, like 200mbit (default: 1gbit)")
    run.add_argument("words", nargs="+", metavar="COMMAND")
    commands.add_parser("clean", help="remove what killed processes left behind")
    arguments = parser.parse_args()
    try:
        if arguments.command == "run":
            return run_everywhere(arguments.hosts, arguments.rate, arguments.words)
        print("removed:", ", ".join(clean()) or "nothing was left")
    except (ClusterError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except FileNotFoundError as error:
        print(f"error: no such command: {error.filename}", file=sys.stderr)
        return 127
    return 0


if __name__ == "__main__":
    sys.exit(main())
