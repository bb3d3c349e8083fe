"""The collectives of ``torch.distributed`` for ``communicator = allreduce``.

Where the script has a process group, groups of the same backend are made beside it, so that the script's own
collectives and ours cannot get into each other's order. Else gloo is started, and ranks find each other over
byteps's control plane. CUDA tensors come here as copies in pinned host memory; NCCL, which works on GPU
memory only, gets copies of those.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from byteps.communicator import Board, Buffer, Collective, Done, Meeting
from byteps.config import parse_address
from byteps.dtypes import DType, ReduceOp
from byteps.errors import BytePSError, ConfigError, JoinError
from byteps.network import advertised_address
from byteps.torch.tensors import ELEMENT_TYPES

THREADS = 3
"""Threads of gloo, each of which carries out one collective. Measured: docs/decisions."""
IN_HAND = 8
"""Collectives given to gloo at most: a thread takes the next as one ends."""
_NCCL = "nccl"
_PER_GROUP = 2
"""Threads that torch gives a gloo group of its own making."""

_OPS = MappingProxyType(
    {
        ReduceOp.SUM: dist.ReduceOp.SUM,
        ReduceOp.MIN: dist.ReduceOp.MIN,
        ReduceOp.MAX: dist.ReduceOp.MAX,
        ReduceOp.PRODUCT: dist.ReduceOp.PRODUCT,
    }
)
DTYPES = MappingProxyType({dtype: kind for kind, dtype in ELEMENT_TYPES.items()})
_log = logging.getLogger("byteps.torch")


def engine(meeting: Meeting) -> TorchCollectives:
    """Make the collectives of this rank; all ranks do at the same time.

    Raises:
        ConfigError: The script's process group has other ranks than the job, or another backend elsewhere.
        JoinError: The ranks cannot reach each other.
        PeerLost: One was lost meanwhile.
    """
    backend = _backend_of_script(meeting)
    _agree(backend, meeting)
    if backend == _NCCL:
        device = torch.device("cuda", torch.cuda.current_device())
        return DeviceCollectives(backend, [_beside(backend, meeting)], device)
    if backend:
        groups = [_beside(backend, meeting) for _ in range(-(-THREADS // _PER_GROUP))]
        return TorchCollectives(backend, groups)
    return TorchCollectives("gloo", [gloo_group(meeting, meeting.rank, meeting.size)])


class TorchCollectives:
    """See ``Collectives``.

    Args:
        name: Of the backend.
        groups: Take turns.
    """

    concurrency = IN_HAND
    # Gloo has neither 16-bit integers nor logical reductions of booleans; the wide form stands in for them.
    dtypes = frozenset(DType) - {DType.INT16, DType.BOOL}

    def __init__(self, name: str, groups: Sequence[Any]) -> None:
        self.name = name
        self._groups = list(groups)
        self._started = 0

    def start(self, what: Collective, memory: Buffer, done: Done) -> None:
        """See ``Collectives.start``."""
        if not self._groups:
            done(BytePSError("closed"))
            return
        work = self._begin(what, tensor_at(memory, DTYPES[what.dtype]))
        work.get_future().add_done_callback(lambda future: done(_failure(future)))

    def close(self) -> None:
        """See ``Collectives.close``."""
        groups, self._groups = self._groups, []
        for group in groups:
            with contextlib.suppress(RuntimeError):
                group.abort()

    def _begin(self, what: Collective, tensor: Tensor) -> Any:
        """Start a collective on a tensor."""
        group = self._groups[self._started % len(self._groups)]
        self._started += 1
        if what.op is ReduceOp.COPY:
            copies = dist.BroadcastOptions()
            copies.rootRank, copies.rootTensor = what.root, 0
            return group.broadcast([tensor], copies)
        reduces = dist.AllreduceOptions()
        reduces.reduceOp = dist.ReduceOp(_OPS[what.op])
        return group.allreduce([tensor], reduces)


class DeviceCollectives(TorchCollectives):
    """The same by groups that work on a device's memory only: on copies, made while the device computes.

    Args:
        name: Of the backend.
        groups: Take turns.
        device: Where the copies are.
    """

    concurrency = 4

    def __init__(self, name: str, groups: Sequence[Any], device: torch.device) -> None:
        super().__init__(name, groups)
        self._device = device
        # One for the way there and one for the way back. None has no effect where it is used.
        on_cuda = device.type == "cuda"
        self._there, self._back = (torch.cuda.Stream(device) if on_cuda else None for _ in range(2))
        self._waiting = ThreadPoolExecutor(self.concurrency, "byteps-collectives")

    def start(self, what: Collective, memory: Buffer, done: Done) -> None:
        """See ``Collectives.start``."""
        if not self._groups:
            done(BytePSError("closed"))
            return
        host = tensor_at(memory, DTYPES[what.dtype])
        with torch.cuda.stream(self._there):
            copy = host.to(self._device, copy=True)
            work = self._begin(what, copy)
        self._waiting.submit(self._finish, work, copy, host, done)

    def close(self) -> None:
        """See ``Collectives.close``."""
        super().close()
        self._waiting.shutdown(wait=False)

    def _finish(self, work: Any, copy: Tensor, host: Tensor, done: Done) -> None:
        try:
            with torch.cuda.stream(self._back):
                work.wait()
                host.copy_(copy)  # which waits until it is done, and only then lets go of the copy
        except Exception as error:
            done(error)
        else:
            done(None)


def _failure(future: torch.futures.Future[Any]) -> Exception | None:
    """Why a collective failed, or nothing."""
    try:
        future.value()
    except Exception as error:
        return error
    return None


def tensor_at(memory: Buffer, dtype: torch.dtype) -> Tensor:
    """A tensor over host memory."""
    view = (ctypes.c_char * memory.nbytes).from_address(memory.address)
    return torch.frombuffer(view, dtype=dtype)


def _backend_of_script(meeting: Meeting) -> str:
    """The script's backend for host memory, or NCCL if that is all it has; empty for neither."""
    if not (dist.is_available() and dist.is_initialized()):
        return ""
    if (dist.get_rank(), dist.get_world_size()) != (meeting.rank, meeting.size):
        raise ConfigError(
            f"torch.distributed says that this is rank {dist.get_rank()} of {dist.get_world_size()}, byteps "
            f"that it is rank {meeting.rank} of {meeting.size}; start both with the same ranks, or only one"
        )
    names = dist.get_backend_config().split(",")
    found = dict(name.split(":", 1) for name in names if ":" in name)
    for_host = found.get("cpu", "")
    if for_host not in ("", _NCCL, "fake"):
        return for_host
    return _NCCL if found.get("cuda") == _NCCL and torch.cuda.is_available() else ""


def _agree(backend: str, meeting: Meeting) -> None:
    """Make sure that all ranks make groups of the same kind: else they would wait for each other.

    Raises:
        ConfigError: They do not; on all ranks.
    """
    board, limit_s = meeting.board, meeting.config.join_timeout_s
    if meeting.rank != 0:
        board.set(f"backend {meeting.rank}", backend.encode())
        verdict = board.get("backends", limit_s).decode()
    else:
        others = range(1, meeting.size)
        told = {rank: board.get(f"backend {rank}", limit_s).decode() for rank in others}
        verdict = next(
            (_difference(backend, rank, other) for rank, other in told.items() if other != backend), ""
        )
        board.set("backends", verdict.encode())
    if verdict:
        raise ConfigError(verdict)


def _difference(backend: str, rank: int, other: str) -> str:
    groups = [f"a process group of {name}" if name else "no process group" for name in (backend, other)]
    return (
        f"rank 0 has {groups[0]} and rank {rank} has {groups[1]}; call "
        "torch.distributed.init_process_group with the same backend on all ranks before init(), or on none"
    )


def _beside(backend: str, meeting: Meeting) -> Any:
    """A group like the script's own. Horovod's rule holds: all ranks call init()."""
    timeout = datetime.timedelta(seconds=meeting.config.peer_timeout_s)
    return dist.new_group(backend=backend, timeout=timeout)


def gloo_group(meeting: Meeting, place: int, size: int, prefix: str = "") -> Any:
    """A gloo group that no other part of torch knows of.

    Args:
        meeting: Of the job's ranks.
        place, size: This rank's place in the group, and how many it has.
        prefix: Tells its notes from those of other groups.

    Raises:
        JoinError: The ranks cannot reach each other.
    """
    from torch.distributed.distributed_c10d import ProcessGroupGloo

    config = meeting.config
    coordinator = parse_address(config.coordinator)[0] if config.coordinator else ""
    options: Any = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._threads = THREADS
    # All ranks start a collective together, once all have what it needs: none waits for a rank that computes.
    options._timeout = datetime.timedelta(seconds=config.peer_timeout_s)
    options._devices = [ProcessGroupGloo.create_device(hostname=advertised_address(config, coordinator))]
    store = _Store(meeting.board, config.join_timeout_s, prefix)
    try:
        return ProcessGroupGloo(store, place, size, options)
    except RuntimeError as error:
        if isinstance(error, BytePSError):
            raise
        raise JoinError(
            f"gloo on rank {meeting.rank} cannot reach the other ranks: {error}; look at their logs, the "
            "firewall, and BYTEPS_INTERFACE on all hosts"
        ) from error


class _Store(dist.Store):  # type: ignore[name-defined, misc]
    """The board as gloo wants it.

    Args:
        board: Where ranks leave each other notes.
        timeout_s: How long to wait for one.
        prefix: Begins all keys.
    """

    def __init__(self, board: Board, timeout_s: float, prefix: str) -> None:
        super().__init__()
        self._board = board
        self._timeout_s = timeout_s
        self._prefix = prefix

    def set(self, key: str, value: bytes | str) -> None:
        """Leave a note."""
        self._board.set(self._prefix + key, value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        """Read a note, waiting for it if need be."""
        return self._board.get(self._prefix + key, self._timeout_s)

    def wait(self, keys: Sequence[str], timeout: datetime.timedelta | None = None) -> None:
        """Wait for notes."""
        limit_s = self._timeout_s if timeout is None else timeout.total_seconds()
        for key in keys:
            self._board.get(self._prefix + key, limit_s)
