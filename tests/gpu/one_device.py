"""Sums within nodes whose ranks are threads of one process and share one device: what NCCL does not allow.

It stands in for the collectives alone; streams, events and copies are those of real nodes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

import byteps.torch as bps
from byteps.communicator.node_collectives import NodeCollectives, NodeMeeting
from byteps.session import Session
from byteps.testing import cluster, run_ranks
from byteps.torch.node_sums.engine import NodeSums
from byteps.torch.node_sums.streams import CudaStreams, HostStreams

NODES = (0, 0, 1, 1)
LENGTHS = (1000, 300_003, 3_000_000)
TURNS = 3
LATE_CYCLES = 20_000_000
"""For some milliseconds the device does not write what is sent: who does not wait for it reads nonsense."""


class _Over:
    """A collective that the current stream has been given."""

    def wait(self) -> None:
        """Nothing to wait for."""


class SharedGroup:
    """Collectives of ranks that are threads."""

    def __init__(self, size: int) -> None:
        self._given: list[tuple[Tensor, torch.cuda.Event | None]] = [(torch.empty(0), None)] * size
        self._barrier = threading.Barrier(size, timeout=30)

    def exchange(self, place: int, own: Tensor) -> list[Tensor]:
        """What all ranks have given; the current stream may read it."""
        stream = torch.cuda.current_stream(own.device) if own.is_cuda else None
        self._given[place] = own, None if stream is None else stream.record_event()
        self._barrier.wait()
        given = list(self._given)
        for tensor, event in given:
            if stream is not None and event is not None:
                stream.wait_event(event)
                tensor.record_stream(stream)
        self._barrier.wait()
        return [tensor for tensor, _ in given]

    def abort(self) -> None:
        """Those that wait need not wait any longer."""
        self._barrier.abort()


class Place:
    """One rank's hold of a ``SharedGroup``: what ``NodeSums`` uses of a process group."""

    def __init__(self, group: SharedGroup, place: int, size: int) -> None:
        self._group, self._place, self._size = group, place, size

    def _reduce_scatter_base(self, share: Tensor, whole: Tensor, options: object) -> _Over:
        parts = [each.chunk(self._size)[self._place] for each in self._group.exchange(self._place, whole)]
        share.copy_(torch.stack(parts).sum(0))
        return _Over()

    def _allgather_base(self, whole: Tensor, share: Tensor) -> _Over:
        whole.copy_(torch.cat(self._group.exchange(self._place, share)))
        return _Over()

    def abort(self) -> None:
        """See ``SharedGroup``."""
        self._group.abort()


def engines(device: torch.device) -> Callable[[NodeMeeting], NodeCollectives]:
    """Makes engines of ranks of this process that share a device."""
    groups = {node: SharedGroup(NODES.count(node)) for node in set(NODES)}

    def engine(meeting: NodeMeeting) -> NodeCollectives:
        node = NODES[meeting.rank]
        place = Place(groups[node], meeting.node.index(meeting.rank), len(meeting.node))
        streams = CudaStreams(device) if device.type == "cuda" else HostStreams()
        return NodeSums("threads", place, len(meeting.node), streams, least_bytes=1)

    return engine


def wrong_sums(device: torch.device) -> list[str]:
    """Sums and averages of tensors that the device has yet to write; which are not right."""
    settings: dict[str, Any] = {"collective_bytes": 1 << 20, "stall_timeout_s": 40.0}
    with cluster(len(NODES), 2, nodes=NODES, node_engine=engines(device), **settings) as sessions:
        return [text for found in run_ranks(sessions, partial(_wrong, device)) for text in found]


def _wrong(device: torch.device, session: Session) -> list[str]:
    on_cuda = device.type == "cuda"
    wrong = []
    with torch.cuda.stream(torch.cuda.Stream(device) if on_cuda else None):
        for turn in range(TURNS):
            given = [torch.zeros(length, device=device) for length in LENGTHS]
            for tensor in given:
                if on_cuda:
                    torch.cuda._sleep(LATE_CYCLES)
                tensor.fill_(session.rank + turn)
            average, send = bool(turn % 2), bps.push_pull_async if turn else bps.push_pull_async_inplace
            handles = [send(one, average, f"{average} {one.numel()}", session=session) for one in given]
            wanted = sum(rank + turn for rank in range(len(NODES))) / (len(NODES) if average else 1)
            for handle in handles:
                result = bps.synchronize(handle)
                if not bool((result == wanted).all()):
                    wrong.append(f"turn {turn}, {result.numel()} elements, rank {session.rank}")
    return wrong
