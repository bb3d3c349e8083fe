"""Hosts that are far apart: a process in place of the switch holds every packet back. Root and iproute2 only.

Not every kernel has netem. Each host gets a TAP device here, and whole segments (GSO) go from one to another
through the queue of the sender's link, the delay, and the queue of the receiver's link.

Started by ``DistantHosts``: ``python -m benchmarks.distance MBITS DELAY_MS NAMESPACE...``
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import os
import select
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cluster import Cluster, ClusterError, bits_per_second

# linux/if_tun.h
TUNSETIFF, TUNSETOFFLOAD, TUNSETVNETHDRSZ = 0x400454CA, 0x400454D0, 0x400454D8
TAP, NO_PACKET_INFO, VNET_HEADER = 0x2, 0x1000, 0x4000
CHECKSUMS, SEGMENTS_V4, SEGMENTS_V6 = 1, 2, 4
CLONE_NEWNET = 0x40000000

# struct virtio_net_hdr_v1, ahead of each packet.
HEADER = struct.Struct("<BBHHHHH")
MAX_PACKET_BYTES = HEADER.size + (64 << 10) + 256
# Ethernet, IP and TCP with time stamps; preamble, checksum and gap.
SEGMENT_HEADERS_BYTES, FRAME_BYTES = 66, 24
# Longest time that a packet waits in a link's queue, of the time to the other end and back.
QUEUE_SHARE = 1.0
MIN_QUEUE_S = 0.02
READY = "ready"


class DistantHosts(Cluster):
    """Hosts of a cluster that are some time away from each other.

    Args:
        hosts: How many.
        rate: Of every host's link, in each direction.
        round_trip_s: From one host to another and back, seconds.
    """

    def __init__(self, hosts: int, rate: str, round_trip_s: float) -> None:
        super().__init__(hosts, rate)
        self.round_trip_s = round_trip_s

    def _connect(self) -> None:
        words = [f"{bits_per_second(self.rate) / 1e6}", f"{1e3 * self.round_trip_s / 2}", *self._names]
        switch = self.run(0, [sys.executable, "-m", "benchmarks.distance", *words], stdout=subprocess.PIPE)
        assert switch.stdout is not None
        if switch.stdout.readline().strip() != READY:
            raise ClusterError("the process in place of the switch has ended; its output above says why")

    def set_rate(self, host: int, rate: str) -> None:
        """Refused: the rate of distant hosts stays as it is."""
        raise ClusterError(f"the rate of distant hosts is fixed: {self.rate}")


def open_tap(namespace: str) -> int:
    """Make ``eth0`` in a network namespace; the descriptor of its other end."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/self/ns/net") as home, Path("/run/netns", namespace).open() as there:
        if libc.setns(there.fileno(), CLONE_NEWNET) != 0:
            raise ClusterError(f"cannot enter {namespace}: {os.strerror(ctypes.get_errno())}")
        try:
            tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", b"eth0", TAP | NO_PACKET_INFO | VNET_HEADER))
        except OSError as error:
            raise ClusterError(f"distant hosts need TAP devices (/dev/net/tun): {error}") from error
        finally:
            libc.setns(home.fileno(), CLONE_NEWNET)
    fcntl.ioctl(tap, TUNSETVNETHDRSZ, struct.pack("i", HEADER.size))
    fcntl.ioctl(tap, TUNSETOFFLOAD, CHECKSUMS | SEGMENTS_V4 | SEGMENTS_V6)
    return tap


def wire_bytes(packet: bytes) -> int:
    """What a packet takes of a link: it travels in segments, each with headers of its own."""
    segment_bytes: int = HEADER.unpack_from(packet)[3]
    length = len(packet) - HEADER.size
    if not segment_bytes:
        return length + FRAME_BYTES
    segments = max(1, -(-(length - SEGMENT_HEADERS_BYTES) // segment_bytes))
    return length + (segments - 1) * SEGMENT_HEADERS_BYTES + segments * FRAME_BYTES


@dataclass
class Queue:
    """One direction of a link.

    Args:
        bytes_per_s: Its rate.
        longest_s: A packet that would wait longer than this is dropped.
        free_s: When all that waits has gone.
    """

    bytes_per_s: float
    longest_s: float
    free_s: float = 0.0

    def leaves_s(self, arrives_s: float, nbytes: int) -> float | None:
        """When a packet that arrives then has passed; None if it is dropped."""
        if self.free_s > arrives_s + self.longest_s:
            return None
        self.free_s = max(self.free_s, arrives_s) + nbytes / self.bytes_per_s
        return self.free_s


class Switch:
    """Passes packets on between TAP devices.

    Args:
        taps: Their descriptors.
        bytes_per_s: Of each link, in each direction.
        delay_s: One way.
    """

    def __init__(self, taps: Sequence[int], bytes_per_s: float, delay_s: float) -> None:
        longest_s = max(MIN_QUEUE_S, QUEUE_SHARE * 2 * delay_s)
        self._delay_s = delay_s
        self._up = {tap: Queue(bytes_per_s, longest_s) for tap in taps}
        self._down = {tap: Queue(bytes_per_s, longest_s) for tap in taps}
        self._due: list[tuple[float, int, int, bytes]] = []  # when, a number that keeps order, where to, what
        self._place: dict[bytes, int] = {}  # of hardware addresses
        self._count = 0

    def turn(self) -> None:
        """Wait for a packet, or for the moment at which one is due."""
        left_s = max(0.0, self._due[0][0] - time.monotonic()) if self._due else None
        for tap in select.select([*self._up], [], [], left_s)[0]:
            self._take(tap)
        now = time.monotonic()
        while self._due and self._due[0][0] <= now:
            _, _, tap, packet = heapq.heappop(self._due)
            with contextlib.suppress(OSError):  # this host's device is not up yet
                os.write(tap, packet)

    def _take(self, tap: int) -> None:
        packet = os.read(tap, MAX_PACKET_BYTES)
        to, sender = packet[HEADER.size :][:6], packet[HEADER.size + 6 :][:6]
        self._place[sender] = tap
        nbytes = wire_bytes(packet)
        sent_s = self._up[tap].leaves_s(time.monotonic(), nbytes)
        if sent_s is None:
            return
        known = self._place.get(to)
        for other in [other for other in self._up if other != tap] if known is None else [known]:
            # Bytes go on as they come in: a packet passes two links of one rate in one time.
            began_s = sent_s + self._delay_s - nbytes / self._down[other].bytes_per_s
            due_s = self._down[other].leaves_s(began_s, nbytes)
            if due_s is not None:
                self._count += 1
                heapq.heappush(self._due, (due_s, self._count, other, packet))


def main() -> None:
    """The process in place of the switch; it is killed."""
    mbits, delay_ms, *namespaces = sys.argv[1:]
    switch = Switch([open_tap(name) for name in namespaces], float(mbits) * 1e6 / 8, float(delay_ms) / 1e3)
    print(READY, flush=True)
    while True:
        switch.turn()


if __name__ == "__main__":
    main()
