"""Who is in the job: joining, ranks and server numbers, settings that all share, and the Welcome to all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from byteps.coordinator.machines import spare_lanes
from byteps.errors import JoinError
from byteps.hierarchy import nodes_of
from byteps.wire import JobSettings, Join, ServerAddress, Welcome

DEFAULT_SETTINGS = JobSettings(lanes=1, partition_bytes=4 * 1024 * 1024, deterministic=False)
FIRST_EPOCH = 1


@dataclass(slots=True, eq=False)
class Member:
    """A worker or server that has joined.

    Attributes:
        id: The driver's number for the connection.
        join: What it said when it joined.
        number: Rank or server number; -1 while none is given.
        heard_s: When it was last heard of; ``None`` before the job has started.
    """

    id: int
    join: Join
    number: int
    heard_s: float | None = None

    @property
    def is_worker(self) -> bool:
        """Whether this is a worker, not a server."""
        return self.join.role == "worker"

    def __str__(self) -> str:
        """As error messages name it: ``worker rank 3 (pid 4242 on node7)``."""
        process = f"(pid {self.join.pid} on {self.join.node or 'an unnamed node'})"
        if self.number < 0:
            return f"{self.join.role} {process}"
        return f"worker rank {self.number} {process}" if self.is_worker else f"server {self.number} {process}"


class Membership:
    """The members of one job.

    Args:
        num_workers: Workers to wait for; 0 if the members are to tell.
        num_servers: Servers to wait for; 0 if the members are to tell.
    """

    def __init__(self, num_workers: int, num_servers: int) -> None:
        self._members: dict[int, Member] = {}
        self._numbered: dict[tuple[str, int], Member] = {}
        self._agreements = {name: _Agreement(name) for name in _SHARED}
        self._agreements["size"].record(num_workers or None, "the coordinator")
        self._agreements["num_servers"].record(num_servers or None, "the coordinator")

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __len__(self) -> int:
        return len(self._members)

    def get(self, member: int) -> Member | None:
        """The member with the driver's number ``member``."""
        return self._members.get(member)

    def find(self, role: str, number: int) -> Member | None:
        """The worker of rank, or the server with number, ``number``."""
        return self._numbered.get((role, number))

    def remove(self, member: int) -> Member | None:
        """Take a member out."""
        one = self._members.pop(member, None)
        if one is not None:
            self._numbered.pop((one.join.role, one.number), None)
        return one

    @property
    def workers(self) -> list[Member]:
        """Workers, by rank once ranks are given, by time of joining before."""
        return sorted((one for one in self if one.is_worker), key=lambda one: one.number)

    @property
    def servers(self) -> list[Member]:
        """Servers, by number once numbers are given, by time of joining before."""
        return sorted((one for one in self if not one.is_worker), key=lambda one: one.number)

    @property
    def size(self) -> int:
        """Number of workers in the job; 0 as long as nobody has told."""
        return int(self._agreements["size"].value or 0)

    @property
    def num_servers(self) -> int:
        """Number of servers in the job; 0 as long as nobody has told."""
        return int(self._agreements["num_servers"].value or 0)

    @property
    def settings(self) -> JobSettings:
        """What the workers agreed on, defaults if none of them told; and the lanes, if they are automatic."""
        told = next((one.join.settings for one in self if one.join.settings is not None), DEFAULT_SETTINGS)
        joined = ([one.join for one in group] for group in (self.workers, self.servers))
        spare = 0 if told.lanes or self.nodes else spare_lanes(*joined)
        return msgspec.structs.replace(told, lanes=told.lanes or 1 + spare, spare_lanes=spare)

    @property
    def nodes(self) -> list[list[int]]:
        """Ranks, once they are given, that sum together before anything leaves their node."""
        return nodes_of([worker.join.place for worker in self.workers])

    @property
    def needs_servers(self) -> bool:
        """Whether servers carry out the rounds."""
        return self._agreements["communicator"].value != "allreduce"

    @property
    def complete(self) -> bool:
        """Whether every worker and every server has joined."""
        served = not self.needs_servers or 0 < self.num_servers == len(self.servers)
        return 0 < self.size == len(self.workers) and served

    def add(self, member: int, join: Join) -> None:
        """Let a worker or server in.

        Raises:
            JoinError: It cannot be let in; the message says why and names whom it is at odds with.
        """
        new = Member(member, join, join.rank)
        told = {name: tell(join) for name, tell in _SHARED.items()}
        for name, value in told.items():
            self._agreements[name].check(value, str(new))
        self._check_seat(
            new, int(told["size"] or 0) or self.size, int(told["num_servers"] or 0) or self.num_servers
        )
        for name, value in told.items():
            self._agreements[name].record(value, str(new))
        self._members[member] = new
        if new.number >= 0:
            self._numbered[join.role, new.number] = new

    def welcome(self) -> list[tuple[int, Welcome]]:
        """Give numbers to those that have none and greet everybody. To be called once, when ``complete``."""
        for group in (self.workers, self.servers):
            _number(group)
        self._numbered = {(one.join.role, one.number): one for one in self}
        addresses = [ServerAddress(server.join.address, server.join.port) for server in self.servers]
        nodes = self.nodes
        return [
            (one.id, self._greeting(one, group, addresses, nodes))
            for group in (self.servers, self.workers)
            for one in group
        ]

    def waiting_for(self) -> str:
        """Who has not joined yet: ``worker ranks 1, 3 and 1 of 2 servers``."""
        texts = [self._missing_workers()]
        if self.needs_servers:
            texts.append(_missing_count("server", len(self.servers), self.num_servers))
        return " and ".join(text for text in texts if text)

    def contradiction(self) -> str:
        """What a launcher says about a worker's node, where other workers can be met there; or empty."""
        for one in self.workers:
            told, place = one.join.local_size, one.join.place
            found = sum(other.join.place == place for other in self.workers)
            if told and place and found != told:
                return (
                    f"the launcher says that {told} workers share the node of {one}, but {found} can be met "
                    f"there, and only those sum in shared memory; correct BYTEPS_LOCAL_SIZE, or give "
                    f"containers of one node the same network and host name"
                )
        return ""

    def _check_seat(self, new: Member, size: int, num_servers: int) -> None:
        """Refuse a member whose number is taken or does not exist, and any for whom no seat is free."""
        group = self.workers if new.is_worker else self.servers
        seats = size if new.is_worker else num_servers
        holder = self.find(new.join.role, new.number) if new.number >= 0 else None
        if holder is not None:
            raise JoinError(f"{new} cannot join: {holder} has that number already; give each its own")
        highest = max([new.number, *(one.number for one in group)])
        if seats and highest >= seats:
            raise JoinError(
                f"{new} cannot join: number {highest} is out of range in a job of {seats} {new.join.role}s"
            )
        if seats and len(group) >= seats:
            raise JoinError(f"{new} cannot join: the job has all of its {seats} {new.join.role}s already")

    def _greeting(
        self, one: Member, group: Sequence[Member], addresses: list[ServerAddress], nodes: list[list[int]]
    ) -> Welcome:
        local_rank, local_size = _local(one, group)
        others = [_local(other, group) for other in group]
        across = [other.number for other, (rank, _) in zip(group, others, strict=True) if rank == local_rank]
        neighbours = next((node for node in nodes if one.number in node), []) if one.is_worker else []
        return Welcome(
            rank=one.number,
            size=self.size,
            local_rank=local_rank,
            local_size=local_size,
            cross_rank=sorted(across).index(one.number),
            cross_size=len(across),
            homogeneous=len({size for _, size in others}) == 1,
            epoch=FIRST_EPOCH,
            servers=addresses,
            settings=self.settings,
            nodes=nodes,
            doors=[group[rank].join.door for rank in neighbours],
        )

    def _missing_workers(self) -> str:
        numbers = {one.number for one in self.workers}
        if -1 in numbers or not self.size or not numbers:
            return _missing_count("worker", len(self.workers), self.size)
        return name_ranks([rank for rank in range(self.size) if rank not in numbers])


def _local(one: Member, group: Sequence[Member]) -> tuple[int, int]:
    """A member's number on its node, and how many of the group are there."""
    neighbours = [other.number for other in group if other.join.node == one.join.node]
    given = one.join.local_rank
    rank = given if given >= 0 else neighbours.index(one.number)
    return rank, one.join.local_size or len(neighbours)


@dataclass(slots=True)
class _Agreement:
    """A value on which all that tell it must agree."""

    name: str
    value: int | str | None = None
    said_by: str = field(default="")

    def check(self, value: int | str | None, who: str) -> None:
        """Raise ``JoinError`` if ``value`` is told and is another one than before."""
        if value is not None and self.value is not None and value != self.value:
            raise JoinError(
                f"{who} has {self.name}={value}, but {self.said_by} has {self.name}={self.value}; "
                "give all processes of the job the same"
            )

    def record(self, value: int | str | None, who: str) -> None:
        """Keep the first value told, and who told it."""
        if self.value is None and value is not None:
            self.value, self.said_by = value, who


def _setting(name: str) -> Callable[[Join], int | None]:
    return lambda join: None if join.settings is None else int(getattr(join.settings, name))


def _communicator(join: Join) -> str | None:
    """Who serves can only be of use to a job with servers."""
    if join.role == "server":
        return "parameter-server"
    return None if join.settings is None else join.settings.communicator


def _tuning(join: Join) -> str | None:
    """A worker that does not tune says so too: all or none."""
    if join.settings is None:
        return None
    return "off" if join.settings.tuning is None else str(join.settings.tuning)


def _node_collectives(join: Join) -> str | None:
    """Servers have no say in it."""
    return None if join.settings is None or join.role == "server" else join.settings.node_collectives


_SHARED: dict[str, Callable[[Join], int | str | None]] = {
    "size": lambda join: join.size or None,
    "num_servers": lambda join: join.num_servers or None,
    "lanes": _setting("lanes"),
    "partition_bytes": _setting("partition_bytes"),
    "deterministic": _setting("deterministic"),
    "communicator": _communicator,
    "tuning": _tuning,
    "node_collectives": _node_collectives,
}


def _number(group: Sequence[Member]) -> None:
    """Give the free numbers to members without one, in the order in which they joined."""
    taken = {one.number for one in group}
    free = iter(number for number in range(len(group)) if number not in taken)
    for one in group:
        if one.number < 0:
            one.number = next(free)


def name_ranks(ranks: Sequence[int]) -> str:
    """Ranks as messages name them: ``worker ranks 1, 3``; the first 20 if there are many."""
    if not ranks:
        return ""
    numbers = [str(rank) for rank in ranks[:20]] + ["..."] * (len(ranks) > 20)
    return f"worker rank{'s' if len(ranks) > 1 else ''} {', '.join(numbers)}"


def _missing_count(role: str, joined: int, expected: int) -> str:
    if not expected:
        return f"the number of {role}s, which no process of the job was told"
    return f"{expected - joined} of {expected} {role}s" if joined < expected else ""
