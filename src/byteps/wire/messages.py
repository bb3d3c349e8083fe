"""The control plane's messages: what workers, servers and the coordinator tell each other.

Each is sent as a msgpack array. Tensor bytes never travel here. Messages about tensors: ``tensors``.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from byteps.wire.fields import Count, Number, OptionalNumber
from byteps.wire.tensors import Declare, Declared, Finished, Install, Installed, Refuse, Retract
from byteps.wire.tuning import Agreed, Measured, Proceed, Retune, Taken, TuningSettings

Role: TypeAlias = Literal["worker", "server"]
CommunicatorName: TypeAlias = Literal["parameter-server", "allreduce"]
Topic: TypeAlias = Literal["ready", "order", "board", "round"]


class JobSettings(msgspec.Struct, frozen=True, array_like=True):
    """Settings that must be the same on all workers and that servers learn from them.

    Attributes:
        lanes: Connections between each worker and each server; in a ``Join`` 0: the coordinator is to choose.
        partition_bytes: Upper limit for the size of a partition.
        deterministic: Whether servers add contributions in rank order.
        communicator: What carries out the rounds: servers, or the workers among themselves.
        tuning: How settings are searched for while training; ``None``: not at all.
        node_collectives: What workers of one node sum their tensors by before they push them.
        spare_lanes: How many of the lanes carry nothing until the others are found to be what limits; in a
            ``Welcome`` only.
    """

    lanes: Annotated[int, Meta(ge=0, le=256)]
    partition_bytes: Annotated[int, Meta(ge=1, lt=2**40)]
    deterministic: bool
    communicator: CommunicatorName = "parameter-server"
    tuning: TuningSettings | None = None
    node_collectives: Literal["off", "auto", "nccl", "gloo"] = "off"
    spare_lanes: Annotated[int, Meta(ge=0, le=256)] = 0


class ServerAddress(msgspec.Struct, frozen=True, array_like=True):
    """Where workers reach a server's data port."""

    host: str
    port: Annotated[int, Meta(ge=0, lt=2**16)]


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
        may_add_lanes: Whether a second connection to each peer can be of use here.
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
    may_add_lanes: bool = False


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
