"""Declarations on their way: install new tensors at the servers, then answer the ranks that asked.

No rank may push before every server that sums a part of the tensor knows it, so an answer waits for the
servers' ``Installed``, and for nothing else: never for other ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from byteps.coordinator.tensors import Tensor, TensorTable
from byteps.errors import ProtocolError
from byteps.wire import (
    Declare,
    Declared,
    Finished,
    Install,
    Installed,
    InstalledTensor,
    Message,
    Placement,
    Refuse,
    Retract,
)

RETIRE_BATCH = 256
"""As many forgotten tensors wait at most for the next ``Install`` before a server is told."""


@dataclass(frozen=True, slots=True)
class ToRank:
    """A message for the worker of a rank."""

    rank: int
    message: Message


@dataclass(frozen=True, slots=True)
class ToServer:
    """A message for the server of a number."""

    server: int
    message: Message


Outgoing = ToRank | ToServer


@dataclass(slots=True)
class _Question:
    """A ``Declare`` without an answer yet, or a message to send, and the installs it waits for."""

    rank: int
    request: int
    tensors: list[Tensor]
    waits_for: set[int]
    message: Message | None = None


class Declarations:
    """Answers ``Declare``, ``Refuse`` and ``Finished``, keeping the servers up to date.

    Args:
        table: The job's tensors.
    """

    def __init__(self, table: TensorTable) -> None:
        self._table = table
        self._next_request = 0
        self._installs: dict[int, tuple[int, list[Tensor]]] = {}
        self._questions: list[_Question] = []
        self._retire: defaultdict[int, list[int]] = defaultdict(list)

    def declare(self, rank: int, message: Declare) -> list[Outgoing]:
        """A rank declares tensors.

        Raises:
            ProtocolError: The message contradicts itself or this rank's earlier ones.
        """
        outcome = self._table.declare(rank, message)
        out = self._retract(outcome.failed)
        out += self._install(outcome.created)
        return out + self._ask(_Question(rank, message.request, outcome.tensors, set()))

    def replace(self, rank: int, created: list[Tensor], message: Message) -> list[Outgoing]:
        """Install what is to stand for other tensors, then send the message."""
        return self._install(created) + self._ask(_Question(rank, 0, created, set(), message))

    def refuse(self, rank: int, message: Refuse) -> list[Outgoing]:
        """A rank cannot go along with a tensor: tell those that hold it, but not the rank, which knows."""
        what = (message.name, message.generation, message.message, message.after)
        return self._retract(self._table.refuse(rank, *what))

    def finished(self, rank: int, message: Finished) -> list[Outgoing]:
        """A rank is done with tensors."""
        return self._forget(self._table.finish(rank, message.ids))

    def depart(self, rank: int) -> list[Outgoing]:
        """A rank left in order."""
        self._questions = [question for question in self._questions if question.rank != rank]
        return self._forget(self._table.depart(rank))

    def installed(self, server: int, message: Installed) -> list[Outgoing]:
        """A server has taken note.

        Raises:
            ProtocolError: It was not asked.
        """
        expected, tensors = self._installs.pop(message.request, (-1, []))
        if expected != server:
            raise ProtocolError(
                f"server {server} answered install request {message.request}, which it did not get"
            )
        for tensor in tensors:
            tensor.installs.discard(message.request)
        for question in self._questions:
            question.waits_for.discard(message.request)
        return self._answers()

    def _install(self, created: list[Tensor]) -> list[Outgoing]:
        by_server: defaultdict[int, list[Tensor]] = defaultdict(list)
        for tensor in created:
            for server in tensor.servers:
                by_server[server].append(tensor)
        return [self._request(server, tensors) for server, tensors in sorted(by_server.items())]

    def _request(self, server: int, tensors: list[Tensor]) -> ToServer:
        """The next ``Install`` for a server, with what it is to forget."""
        request = self._next_request
        self._next_request += 1
        self._installs[request] = (server, tensors)
        for tensor in tensors:
            tensor.installs.add(request)
        entries = [_entry(tensor, server) for tensor in tensors]
        return ToServer(server, Install(request, entries, self._retire.pop(server, [])))

    def _retract(self, failed: Iterable[tuple[Tensor, set[int]]]) -> list[Outgoing]:
        """Tell ranks and servers at once about tensors that cannot be used any more."""
        out: list[Outgoing] = []
        concerned: set[int] = set()
        for tensor, servers in failed:
            out += [
                ToRank(rank, Retract(tensor.id, tensor.name, tensor.failure, tensor.after))
                for rank in sorted(tensor.holders)
            ]
            for server in servers:
                self._retire[server].append(tensor.id)
            concerned |= servers
        return out + [self._request(server, []) for server in sorted(concerned)]

    def _forget(self, done: Iterable[tuple[int, set[int]]]) -> list[Outgoing]:
        """Let servers forget tensors, together with the next install unless many have come together."""
        for tensor, servers in done:
            for server in servers:
                self._retire[server].append(tensor)
        full = [server for server, ids in self._retire.items() if len(ids) >= RETIRE_BATCH]
        return [self._request(server, []) for server in full]

    def _ask(self, question: _Question) -> list[Outgoing]:
        question.waits_for = set().union(*(tensor.installs for tensor in question.tensors))
        self._questions.append(question)
        return self._answers()

    def _answers(self) -> list[Outgoing]:
        """Answer the questions that wait for no server any more."""
        ready = [question for question in self._questions if not question.waits_for]
        self._questions = [question for question in self._questions if question.waits_for]
        return [_answer(question) for question in ready]


def _answer(question: _Question) -> ToRank:
    if question.message is not None:
        return ToRank(question.rank, question.message)
    answers = [tensor.answer() for tensor in question.tensors]
    for tensor, answer in zip(question.tensors, answers, strict=True):
        if isinstance(answer, Placement):
            tensor.holders.add(question.rank)
    return ToRank(question.rank, Declared(question.request, answers))


def _entry(tensor: Tensor, server: int) -> InstalledTensor:
    spec = tensor.spec
    assert spec is not None
    parts = [
        (index, part.lane, part.nbytes) for index, part in enumerate(tensor.parts) if part.server == server
    ]
    return InstalledTensor(
        tensor.id, spec.dtype, spec.op, spec.prescale, spec.postscale, parts, spec.name, list(spec.members)
    )
