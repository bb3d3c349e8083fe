"""A job without sockets: a coordinator, its members' inboxes and a clock that tests move."""

from __future__ import annotations

from collections import defaultdict
from typing import TypeVar

from byteps.coordinator.core import Coordinator, Outbox
from byteps.dtypes import DType, ReduceOp
from byteps.wire import (
    Declare,
    Declared,
    Install,
    Installed,
    Join,
    Leave,
    Message,
    Placement,
    Refusal,
    Retract,
    TensorSpec,
)

SERVER_IDS = 1000
"""Server n is member 1000 + n; worker r is member r."""

T = TypeVar("T", bound=Message)


def spec(name: str = "a", shape: tuple[int, ...] = (10,), dtype: DType = DType.FLOAT32) -> TensorSpec:
    return TensorSpec(name, dtype, shape, ReduceOp.AVERAGE)


def join(
    rank: int, *, role: str = "worker", node: str = "node0", size: int = 0, num_servers: int = 0
) -> Join:
    assert role in ("worker", "server")
    return Join(
        "worker" if role == "worker" else "server",
        f"{role}{rank}",
        rank=rank,
        size=size,
        num_servers=num_servers,
        node=node,
        address="127.0.0.1" if role == "server" else "",
        port=4000 if role == "server" else 0,
        pid=100 + rank,
    )


class FakeJob:
    """Drives a ``Coordinator`` and keeps what each member is told."""

    def __init__(self, workers: int = 0, servers: int = 0) -> None:
        self.now_s = 0.0
        self.workers, self.servers = workers, servers
        self.core = Coordinator(workers, servers, lambda: self.now_s, join_timeout_s=600, peer_timeout_s=30)
        self.silent: set[tuple[str, int]] = set()  # members whose heartbeats do not come
        self.inbox: defaultdict[int, list[Message]] = defaultdict(list)

    def start(self) -> FakeJob:
        """Let everybody join, and forget the greetings."""
        for server in range(self.servers):
            self.send(SERVER_IDS + server, join(server, role="server"))
        for rank in range(self.workers):
            self.send(rank, join(rank))
        self.inbox.clear()
        return self

    def finished(self) -> bool:
        return self.core.finished

    def failure(self) -> str | None:
        return self.core.failure

    def send(self, member: int, message: Message) -> None:
        self.take(self.core.received(member, message))

    def leave(self, rank: int) -> None:
        """A worker leaves in order, and its process ends."""
        self.send(rank, Leave())
        self.take(self.core.disconnected(rank, "connection closed"))

    def take(self, outbox: Outbox) -> None:
        for member, message in outbox:
            self.inbox[member].append(message)

    def advance(self, seconds: float) -> None:
        """Let time pass with heartbeats, ticking whenever the coordinator asked for it."""
        end_s = self.now_s + seconds
        while self.core.deadline_s is not None and self.core.deadline_s <= end_s and not self.core.finished:
            self.now_s = max(self.now_s, self.core.deadline_s)
            self.beat()
            self.take(self.core.tick())
        self.now_s = end_s
        self.beat()

    def beat(self) -> None:
        """A heartbeat of everybody who is not silent."""
        members = [("worker", rank) for rank in range(self.workers)]
        members += [("server", number) for number in range(self.servers)]
        for role, number in members:
            if (role, number) not in self.silent:
                self.core.heartbeat(role, number)

    def got(self, member: int, kind: type[T]) -> list[T]:
        """Messages of one type that a member has been told."""
        return [message for message in self.inbox[member] if isinstance(message, kind)]

    def declare(self, rank: int, *specs: TensorSpec, generation: int = 0, request: int = 1) -> None:
        self.send(rank, Declare(request, list(specs), [generation] * len(specs)))

    def install(self, server: int) -> list[Install]:
        """A server answers all that it has been sent to install, and forgets it."""
        installs = self.got(SERVER_IDS + server, Install)
        self.inbox[SERVER_IDS + server].clear()
        for message in installs:
            self.send(SERVER_IDS + server, Installed(message.request))
        return installs

    def install_all(self) -> None:
        for server in range(self.servers):
            self.install(server)

    def answers(self, rank: int) -> list[Placement | Refusal]:
        """Everything that a rank was told about tensors that it declared, in order."""
        return [answer for message in self.got(rank, Declared) for answer in message.tensors]

    def errors(self, rank: int) -> list[str]:
        """Errors about tensors that reach the user of a rank."""
        refused = [answer.message for answer in self.answers(rank) if isinstance(answer, Refusal)]
        return refused + [message.message for message in self.got(rank, Retract)]
