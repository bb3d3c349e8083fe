"""Sums within a node by ``torch.distributed``: NCCL on GPUs beside the training program, or gloo on the host.

A part of a tensor is copied, widened and scaled, reduced and scattered; each rank's share goes out through
host memory and comes back summed over all nodes; then shares are divided, rounded and gathered.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from byteps.communicator import Buffer
from byteps.communicator.all_reduce_rounds import Entry
from byteps.communicator.node_collectives import (
    NodeMeeting,
    NodeSum,
    Offer,
    Waited,
    exchange_offers,
    objection,
    refuse,
)
from byteps.communicator.node_cuts import chunk_bytes
from byteps.torch.distributed.engine import DTYPES, gloo_group, tensor_at
from byteps.torch.node_sums.streams import (
    CudaStreams,
    DeviceMemory,
    HostStreams,
    OnDevice,
    Streams,
    check_device,
    device_buffer,
)
from byteps.torch.transfers import buffer

LEAST_BYTES = 64 << 10
"""A smaller tensor takes less time through shared memory than its messages and kernels do."""
_log = logging.getLogger("byteps.torch")


def node_engine(meeting: NodeMeeting, least_bytes: int = LEAST_BYTES) -> NodeSums | None:
    """Make the collectives of this rank's node; all ranks do at the same time. None: none, on all ranks.

    Raises:
        ConfigError: They cannot be made, and the settings do not leave that open.
        JoinError: The ranks cannot reach each other.
        PeerLost: One was lost meanwhile.
    """
    config, rank = meeting.config, meeting.rank
    wanted = config.node_collectives
    offers = exchange_offers(_offer(meeting), rank, meeting.size, meeting.board, config.join_timeout_s)
    problem = objection(offers, meeting.nodes)
    if problem and wanted != "auto":
        raise refuse(problem)
    if problem:
        if rank == 0:
            _log.warning("ranks of a node sum in host memory, not on their GPUs: %s", problem)
        return None
    place, size = meeting.node.index(rank), len(meeting.node)
    if wanted == "gloo":
        group = gloo_group(meeting, place, size, f"node {meeting.node[0]} ") if size > 1 else None
        return NodeSums("gloo", group, size, HostStreams(), least_bytes)
    device = torch.device("cuda", torch.cuda.current_device())
    return NodeSums("nccl", _nccl_group(meeting), size, CudaStreams(device), least_bytes)


@dataclass(slots=True)
class _Sum:
    """See ``NodeSum``."""

    entry: Entry
    padded: int
    share: Tensor
    on_host: bool
    wait: Callable[[], None]

    @property
    def memory(self) -> Buffer:
        """See ``NodeSum``."""
        return buffer(self.share)


class NodeSums:
    """See ``NodeCollectives``.

    Args:
        name: Of the backend.
        group: Of this node's ranks; None if there is only this one.
        size: How many they are.
        streams: Where it all runs.
        least_bytes: Smaller tensors are not taken.
    """

    def __init__(
        self, name: str, group: Any, size: int, streams: Streams, least_bytes: int = LEAST_BYTES
    ) -> None:
        self.name = name
        self.device = str(streams.device)
        self.least_bytes = least_bytes
        self._group = group
        self._size = size
        self._streams = streams

    def lend(self, tensor: Tensor, name: str) -> Buffer:
        """See ``NodeCollectives``."""
        check_device(tensor.device, self.device, name)
        return device_buffer(tensor)

    def follow(self, transfer: Waited, target: Buffer | None) -> OnDevice:
        """See ``NodeCollectives``."""
        return OnDevice(transfer, target)

    def reduce(self, entry: Entry, padded: int, to_host: bool) -> _Sum:
        """See ``NodeCollectives``."""
        form, source, destination = entry.round.form, entry.source, entry.destination
        with self._streams.collectives():
            for memory in (source, destination):
                self._streams.begin(None if memory is None else memory.owner)
            whole = self._empty(padded, DTYPES[form.collective.dtype])
            elements = 0 if source is None else entry.nbytes // form.dtype.itemsize
            if source is not None:
                given = whole[:elements].copy_(self._view(entry, source))
                if form.before != 1.0:
                    given.mul_(form.before)
            whole[elements:].zero_()
            share = whole
            if self._size > 1:
                share = self._empty(padded // self._size, whole.dtype)
                self._group._reduce_scatter_base(share, whole, dist.ReduceScatterOptions()).wait()
        if not to_host:
            return _Sum(entry, padded, share, False, lambda: None)
        host, wait = self._streams.to_host(share)
        return _Sum(entry, padded, host, True, wait)

    def gather(self, summed: NodeSum) -> None:
        """See ``NodeCollectives``."""
        assert isinstance(summed, _Sum), "what reduce() has given"
        entry = summed.entry
        form, destination = entry.round.form, entry.destination
        share = self._streams.to_device(summed.share) if summed.on_host else summed.share
        with self._streams.collectives():
            if form.divisor != 1:
                share.div_(form.divisor)
            if form.after != 1.0:
                share.mul_(form.after)
            own = share.to(DTYPES[form.dtype])
            whole = own
            if self._size > 1:
                whole = self._empty(summed.padded, own.dtype)
                as_bytes = whole.view(torch.uint8), own.view(torch.uint8)
                self._group._allgather_base(*as_bytes).wait()
            if destination is not None:
                view = self._view(entry, destination)
                view.copy_(whole[: view.numel()])
                self._streams.written(destination.owner)

    def abort(self) -> None:
        """See ``NodeCollectives``."""
        group = self._group
        if group is not None:
            with contextlib.suppress(RuntimeError):  # a group that has failed, or cannot be ended early
                group.abort()

    def close(self) -> None:
        """See ``NodeCollectives``."""
        self._streams.drain()
        self.abort()

    def _empty(self, elements: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(elements, dtype=dtype, device=self._streams.device)

    def _view(self, entry: Entry, memory: Buffer) -> Tensor:
        """The part's elements in a tensor's memory."""
        dtype = entry.round.form.dtype
        if isinstance(memory.owner, DeviceMemory):
            begin = entry.begin // dtype.itemsize
            return memory.owner.flat[begin : begin + entry.nbytes // dtype.itemsize]
        part = Buffer(memory.address + entry.begin, entry.nbytes, memory.owner)
        return tensor_at(part, DTYPES[dtype])


def _offer(meeting: NodeMeeting) -> Offer:
    """What this rank has to sum with."""
    config = meeting.config
    told = config.local_size if config.launcher else 0
    lacks, device = ("", "") if config.node_collectives == "gloo" else _nccl(meeting)
    if config.tune:
        lacks = "searches for better sizes (BYTEPS_TUNE), which cannot go with sums that are cut beforehand"
    return Offer(device, chunk_bytes(config), told, lacks)


def _nccl(meeting: NodeMeeting) -> tuple[str, str]:
    """Why this rank cannot sum by NCCL, and its GPU."""
    if not torch.cuda.is_available():
        return "finds no CUDA device", ""
    if not (dist.is_available() and dist.is_initialized() and "cuda:nccl" in dist.get_backend_config()):
        return (
            'has no process group of NCCL: call torch.distributed.init_process_group("nccl") before init()',
            "",
        )
    if (dist.get_rank(), dist.get_world_size()) != (meeting.rank, meeting.size):
        return (
            f"is rank {dist.get_rank()} of {dist.get_world_size()} for torch.distributed, and rank "
            f"{meeting.rank} of {meeting.size} for byteps; start both with the same ranks",
            "",
        )
    return "", str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)


def _nccl_group(meeting: NodeMeeting) -> Any:
    """A group of this node's ranks. All ranks take part in the making of each, in one order."""
    timeout = datetime.timedelta(seconds=meeting.config.join_timeout_s)
    groups = [dist.new_group(list(node), timeout=timeout, backend="nccl") for node in meeting.nodes]
    return groups[meeting.nodes.index(meeting.node)]
