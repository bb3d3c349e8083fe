"""iperf3 between hosts: what the network gives, and other people's traffic."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.hosts import Hosts, Process

ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")


@dataclass(frozen=True)
class Flow:
    """One iperf3 client and its server, in both directions at once.

    Args:
        client: Its host.
        server: Its host.
    """

    client: int
    server: int

    def start(self, hosts: Hosts, seconds: float, *options: str) -> Process:
        """Start both ends; the client ends after ``seconds`` and leaves its report on its standard output.

        Raises:
            SystemExit: iperf3 is not installed.
        """
        if shutil.which("iperf3") is None:
            raise SystemExit("this measurement needs iperf3: apt-get install iperf3")
        place = ["-p", hosts.free_port(self.server)]
        address = hosts.address(self.server)
        listen = ["iperf3", "-s", "-1", "--forceflush", "-B", address, *place]
        listener = hosts.run(self.server, listen, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert listener.stdout is not None
        said = ""
        while "listening" not in said:
            line = listener.stdout.readline()
            if not line:
                raise RuntimeError(f"the iperf3 server has ended: {said}")
            said += line
        connect = ["iperf3", "-c", address, *place, "--bidir", "-t", str(seconds), "-J", *options]
        return hosts.run(self.client, connect, stdout=subprocess.PIPE)


def received(client: Process) -> tuple[float, float]:
    """Payload bytes per second that the server and the client of a flow received.

    Raises:
        RuntimeError: iperf3 failed.
    """
    report = json.loads(client.communicate()[0])
    if "error" in report:
        raise RuntimeError(f"iperf3 failed: {report['error']}")
    sums = (report["end"]["sum_received"], report["end"]["sum_received_bidir_reverse"])
    up, down = (float(total["bits_per_second"]) / 8 for total in sums)
    return up, down


def throughput(hosts: Hosts, workers: Sequence[int], servers: Sequence[int], seconds: float) -> float:
    """Payload bytes per second of all flows between workers and servers together, one direction's mean."""
    # What byteps and the plain sockets ask for too; the kernel lets not everybody choose.
    allowed = os.geteuid() == 0 or "cubic" in ALLOWED.read_text(encoding="ascii")
    options = ["-C", "cubic"] if allowed else []
    flows = [Flow(worker, server) for worker in workers for server in servers]
    clients = [flow.start(hosts, seconds, *options) for flow in flows]
    return sum(sum(received(client)) for client in clients) / 2
