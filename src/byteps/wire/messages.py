"""The control plane's messages: what workers, servers and the coordinator tell each other.

Each is sent as a msgpack array. Tensor bytes never travel here.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from byteps.dtypes import ITEM_BYTES, DType, ReduceOp
from byteps.wire.fields import Count, Number, OptionalNumber, TensorName
from byteps.wire.tuning import Agreed, Measured, Proceed, Retune, Taken, TuningSettings

Role: TypeAlias = Literal["worker", "server"]
CommunicatorName: TypeAlias = Literal["parameter-server", "allreduce"]
Topic: TypeAlias = Literal["ready", "order", "board", "round"]


class TensorSpec(msgspec.Struct, frozen=True, array_like=True):
    """What a rank says about a tensor when it declares it; all ranks must say the same.

    Attributes:
        name: What identifies the tensor across ranks.
        dtype: A ``DType``.
        shape: Elements along each dimension; ``()`` is a scalar.
        op: A ``ReduceOp``.
        prescale: Factor applied to each contribution before the reduction.
        postscale: Factor applied to the result before it is rounded to ``dtype``.
        root: The one rank that contributes, for ``ReduceOp.COPY``; -1 otherwise.
        ephemeral: The name is used once; the tensor is forgotten when every rank has sent ``Finished``.
        members: The ranks that take part, in order; empty: all. Averages are over these.
        context: What it is a part of, in words: tensors of one call match together or not at all.
    """

    name: TensorName
    dtype: Annotated[int, Meta(ge=0, lt=len(DType))]
    shape: Annotated[tuple[Count, ...], Meta(max_length=64)]
    op: Annotated[int, Meta(ge=0, lt=len(ReduceOp))]
    prescale: float = 1.0
    postscale: float = 1.0
    root: OptionalNumber = -1
    ephemeral: bool = False
    members: Annotated[tuple[Number, ...], Meta(max_length=2**16)] = ()
    context: Annotated[str, Meta(max_length=1024)] = ""

    @property
    def length(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.length * ITEM_BYTES[self.dtype]

    def describe(self) -> str:
        """Dtype, shape and operator as error messages show them: ``float32[3, 4] Average``."""
        text = f"{DType(self.dtype).name.lower()}{list(self.shape)} {ReduceOp(self.op).name.title()}"
        if self.root >= 0:
            text += f" from root {self.root}"
        if self.prescale != 1.0:
            text += f" prescale {self.prescale:g}"
        if self.postscale != 1.0:
            text += f" postscale {self.postscale:g}"
        if self.members:
            text += f" among ranks {', '.join(map(str, self.members))}"
        if self.context:
            text += f" ({self.context})"
        return text

    def objection(self, size: int) -> str:
        """Why no job of ``size`` workers can use such a tensor; empty if it can."""
        if self.op == ReduceOp.COPY and not 0 <= self.root < size:
            return f"needs a root rank from 0 to {size - 1}, not {self.root}"
        if self.members and (self.members[-1] >= size or list(self.members) != sorted(set(self.members))):
            return f"needs members from 0 to {size - 1}, each once and in order, not {list(self.members)}"
        if self.op == ReduceOp.COPY and self.members and self.root not in self.members:
            return f"cannot come from root {self.root}, which is not one of its ranks"
        if self.op == ReduceOp.AVERAGE and self.dtype == DType.BOOL:
            return "has no average; use another op or dtype"
        if not (math.isfinite(self.prescale) and math.isfinite(self.postscale)):
            return "needs finite scale factors"
        return ""


class JobSettings(msgspec.Struct, frozen=True, array_like=True):
    """Settings that must be the same on all workers and that servers learn from them.

    Attributes:
        lanes: Connections between each worker and each server.
        partition_bytes: Upper limit for the size of a partition.
        deterministic: Whether servers add contributions in rank order.
        communicator: What carries out the rounds: servers, or the workers among themselves.
        tuning: How settings are searched for while training; ``None``: not at all.
        node_collectives: What workers of one node sum their tensors by before they push them.
    """

    lanes: Annotated[int, Meta(ge=1, le=256)]
    partition_bytes: Annotated[int, Meta(ge=1, lt=2**40)]
    deterministic: bool
    communicator: CommunicatorName = "parameter-server"
    tuning: TuningSettings | None = None
    node_collectives: Literal["off", "auto", "nccl", "gloo"] = "off"


class ServerAddress(msgspec.Struct, frozen=True, array_like=True):
    """Where workers reach a server's data port."""

    host: str
    port: Annotated[int, Meta(ge=0, lt=2**16)]


class Part(msgspec.Struct, frozen=True, array_like=True):
    """A partition's place: which server sums it, over which lane it travels, and its size in bytes."""

    server: Number
    lane: Number
    nbytes: Count


class Join(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Worker or server -> coordinator, first message: who I am, what I know of the job (-1, 0, "": not told).

    Attributes:
        incarnation: Differs between two starts of a process, however much else is the same.
        node: The host's name, which counts local ranks.
        address: Where others reach this process: the link that it shares with whoever has the same address.
        port: A server's data port.
        weight: What share of the bytes a server is to take, relative to the others; 0: not told.
        place: What a worker shares with those that can share memory with it; empty: with nobody.
        door: Where they find it there.
    """

    role: Role
    incarnation: str
    rank: OptionalNumber = -1
    size: Number = 0
    num_servers: Number = 0
    local_rank: OptionalNumber = -1
    local_size: Number = 0
    node: str = ""
    address: str = ""
    port: Annotated[int, Meta(ge=0, lt=2**16)] = 0
    pid: Number = 0
    settings: JobSettings | None = None
    weight: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    place: Annotated[str, Meta(max_length=512)] = ""
    door: Annotated[str, Meta(max_length=100)] = ""


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Coordinator -> all, once everybody has joined. For a server, ``rank`` is its server number.

    Attributes:
        cross_rank, cross_size: Place and number among the ranks that have the same local rank on their nodes.
        homogeneous: Whether all nodes have equally many ranks.
        nodes: Ranks that sum together before anything leaves their node, every rank in one; empty: none do.
        doors: Where this rank finds those of its node, in their order.
    """

    rank: Number
    size: Number
    local_rank: Number
    local_size: Number
    epoch: Number
    servers: list[ServerAddress]
    settings: JobSettings
    cross_rank: Number = 0
    cross_size: Number = 1
    homogeneous: bool = True
    nodes: list[list[Number]] = []
    doors: list[str] = []


class JoinRefused(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Coordinator -> worker or server: you cannot be a member, and why."""

    reason: str


class Declare(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Worker -> coordinator: tensors that this rank will use, and how often it declared each name before."""

    request: Count
    tensors: list[TensorSpec]
    generations: list[Count]


class Placement(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A declared tensor's number and the partitions it is cut into, in order."""

    id: Count
    generation: Count
    parts: list[Part]


class Refusal(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Why a declared tensor cannot be used."""

    name: str
    message: str


class Declared(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Coordinator -> worker: the answer to ``Declare``, one entry per tensor in its order."""

    request: Count
    tensors: list[Placement | Refusal]


class Refuse(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Worker -> coordinator: no round after ``after``, whose result this rank has, can match on all ranks."""

    name: TensorName
    generation: Count
    message: str
    after: Count = 0


class Retract(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Coordinator -> workers that have declared a tensor: no round after ``after`` can be, and why."""

    id: Count
    name: str
    message: str
    after: Count = 0


class Finished(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Worker -> coordinator: this rank is done with ephemeral tensors, or with what others stand for now."""

    ids: list[Count]


class InstalledTensor(msgspec.Struct, frozen=True, array_like=True):
    """What a server must know of a tensor; ``parts`` are its own partitions as (index, lane, bytes).

    The name is for messages only; ``members`` are the ranks that take part, none meaning all.
    """

    id: Count
    dtype: Number
    op: Number
    prescale: float
    postscale: float
    parts: list[tuple[Number, Number, Count]]
    name: str = ""
    members: list[Number] = []


class Install(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Coordinator -> server: tensors to expect from now on, and numbers of tensors to forget."""

    request: Count
    tensors: list[InstalledTensor]
    retire: list[Count]


class Installed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Server -> coordinator: the answer to ``Install``."""

    request: Count


class Barrier(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Worker -> coordinator: tell me when every rank has come this far."""

    request: Count


class BarrierDone(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Coordinator -> worker: the answer to ``Barrier``; ``departed`` has left and will not come, -1: none."""

    request: Count
    departed: OptionalNumber = -1


class AskMissing(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Worker -> coordinator -> servers, or rank 0 where there are none: who lacks in tensor ``id``?"""

    request: Count
    id: Count


class Missing(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The answer to ``AskMissing``: late ranks, and for each the seconds since it was last heard of."""

    request: Count
    ranks: list[Number]
    heard: list[float]


class Forward(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Worker -> coordinator -> other workers: passed on as it is, in the order in which it came.

    Attributes:
        topic: What it is about; see ``communicator``.
        to: The rank that is to get it; -1: all others.
        sender: The rank that it comes from; set by the coordinator.
    """

    topic: Topic
    payload: bytes
    to: OptionalNumber = -1
    sender: OptionalNumber = -1


class OutOfData(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Worker -> coordinator -> other workers: this rank has no more data and takes part with nothing to add.

    Attributes:
        rank: Which; set by the coordinator.
    """

    rank: OptionalNumber = -1


class AllOutOfData(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Coordinator -> workers: all ranks are out of data, ``last`` was the last; they go on together."""

    last: Number


class Leave(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Worker -> coordinator: this rank is done, in order."""


class Departed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Coordinator -> workers and servers: that rank left in order."""

    rank: Number


class Lost(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Coordinator -> all survivors: a peer died, so the job ends. ``number`` is its rank or server number."""

    role: Role
    number: OptionalNumber
    reason: str


class End(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Coordinator -> servers: the last worker has left; finish and exit."""


class AskClock(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Any authenticated peer, a member or not -> coordinator: what is the time?"""

    request: Count


class Clock(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The answer to ``AskClock``: seconds since the epoch by the coordinator's wall clock."""

    request: Count
    wall_s: float


class Heartbeat(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Coordinator -> every connected peer, time and again: the coordinator lives."""


Message: TypeAlias = (
    Join
    | Welcome
    | JoinRefused
    | Declare
    | Declared
    | Refuse
    | Retract
    | Finished
    | Install
    | Installed
    | Barrier
    | BarrierDone
    | AskMissing
    | Missing
    | Leave
    | Departed
    | Lost
    | End
    | AskClock
    | Clock
    | Heartbeat
    | Forward
    | Retune
    | Agreed
    | Taken
    | Proceed
    | Measured
    | OutOfData
    | AllOutOfData
)
