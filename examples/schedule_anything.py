"""Schedule transfers that are not byteps's own: uploads of files over a slow link, one of them urgent.

    python examples/schedule_anything.py

Four large files are on their way when a small urgent one turns up. First come, first served, it waits for all
of them; by priority, for what is in flight. The large files are done as early as before.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import deque

from byteps.scheduler import Part, Scheduler

LINK_BYTES_PER_S, PARTITION_BYTES = 16 << 20, 64 << 10
FILES = {**{f"large{number}": bytes(2 << 20) for number in range(4)}, "urgent": bytes(64 << 10)}


def receive(link: socket.socket) -> None:
    """The far end: takes in bytes at the link's rate and acknowledges each partition with one byte."""
    with link:
        while header := link.recv(4, socket.MSG_WAITALL):
            link.recv(nbytes := int.from_bytes(header, "big"), socket.MSG_WAITALL)
            time.sleep(nbytes / LINK_BYTES_PER_S)  # workload
            link.sendall(b".")


def upload(policy: str) -> dict[str, float]:
    """Seconds until each file has arrived."""
    near, far = socket.socketpair()
    under_way: deque[Part] = deque()
    arrived_s: dict[str, float] = {}

    def start(part: Part) -> None:
        under_way.append(part)
        near.sendall(part.nbytes.to_bytes(4, "big") + FILES[part.task.name][part.slice()])

    with near:
        threading.Thread(target=receive, args=[far]).start()
        scheduler = Scheduler(
            credit_bytes=2 * PARTITION_BYTES, partition_bytes=PARTITION_BYTES, policy=policy
        )
        begin_s = time.monotonic()
        for name, content in FILES.items():
            scheduler.submit(name, len(content), start, priority=int(name == "urgent")).ready()
        while under_way and near.recv(1):
            part = under_way.popleft()
            part.finish()
            if part.task.future.done():
                arrived_s[part.task.name] = time.monotonic() - begin_s
    return arrived_s


if __name__ == "__main__":
    for policy in ("fifo", "priority"):
        all_ms = {name: 1000 * arrived_s for name, arrived_s in upload(policy).items()}
        print(f"{policy:8}  urgent: {all_ms['urgent']:4.0f} ms  all: {max(all_ms.values()):4.0f} ms")
