"""Where the ranks of a Horovod job find each other: ``python -m benchmarks.peers.horovod_meeting HOST...``.

One rank per host (names may be equal). Prints the port of its server; ends with standard input.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any


def main() -> None:
    """Serve until standard input ends."""
    hosts: Any = importlib.import_module("horovod.runner.common.util.hosts")
    http: Any = importlib.import_module("horovod.runner.http.http_server")
    size = len(sys.argv) - 1
    counts = {name: sys.argv[1:].count(name) for name in sys.argv[1:]}
    plan = hosts.get_host_assignments([hosts.HostInfo(name, count) for name, count in counts.items()], size)
    server = http.RendezvousServer()
    port = server.start()
    server.init(plan)
    print(port, flush=True)
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    main()
