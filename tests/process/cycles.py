"""One process that joins and leaves many jobs; prints what it holds at the beginning and at the end."""

from __future__ import annotations

import gc
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from byteps.adapters import current
from byteps.joining import connect
from tests.process.faulty import exchange, say
from tests.session.sockets import make_config, socket_roles

WARM_UP = 15


def cycle(pool: ThreadPoolExecutor) -> None:
    """One job over real sockets: this process is rank 0, and its threads are everybody else."""
    with socket_roles(2, servers=2, connections=2) as shared:
        joining = pool.submit(connect, make_config(rank=1, **shared))
        session = current.init(None, rank=0, **shared)
        other = joining.result()
        theirs = pool.submit(exchange, other, "layer4.weight")
        assert exchange(session, "layer4.weight") == theirs.result() == 3
        current.shutdown()
        other.shutdown()


def held() -> str:
    """Descriptors, threads, resident kilobytes and Python's objects."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    objects = len(gc.get_objects())
    descriptors = len(os.listdir("/proc/self/fd"))
    return f"{descriptors} {threading.active_count()} {pages * os.sysconf('SC_PAGE_SIZE') // 1024} {objects}"


def main(cycles: int) -> None:
    """Run the cycles, after a few that fill caches."""
    with ThreadPoolExecutor(2) as pool:
        for _ in range(WARM_UP):
            cycle(pool)
        say(f"first {held()}")
        for _ in range(cycles):
            cycle(pool)
        say(f"last {held()}")


if __name__ == "__main__":
    main(int(sys.argv[1]))
