"""What an engine for sums within nodes offers to ``NodeFirst``, and what ranks must agree on to make one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from byteps.communicator.all_reduce_rounds import Entry
from byteps.communicator.board import Board
from byteps.communicator.collectives import Meeting
from byteps.communicator.interface import Buffer
from byteps.errors import ConfigError


class NodeSum(Protocol):
    """A part of a tensor summed over this node: the share that this rank holds of it."""

    def wait(self) -> None:
        """Wait until ``memory`` holds the share. Raises what went wrong."""

    @property
    def memory(self) -> Buffer:
        """The share in host memory, in the dtype that sums travel in. The sum over all nodes replaces it."""


class Waited(Protocol):
    """A round that an adapter waits for."""

    def poll(self) -> bool: ...
    def wait(self) -> object: ...


class NodeCollectives(Protocol):
    """Collectives of the ranks of a node, all of which call ``reduce`` and ``gather`` in one order.

    Attributes:
        name: What errors and reports call it.
        device: Where it sums, as torch writes it.
        least_bytes: Smaller tensors are not worth it.
    """

    @property
    def name(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def least_bytes(self) -> int: ...

    def lend(self, tensor: Any, name: str) -> Buffer:
        """A contiguous tensor of the framework on ``device``, as it is when the program gets to this call.

        Raises:
            ValueError: It is on another device. The message names it by ``name``.
        """

    def follow(self, transfer: Waited, target: Buffer | None) -> Waited:
        """The round as the program waits for it where tensors are written later than told; see ``lend``."""

    def reduce(self, entry: Entry, padded: int, to_host: bool) -> NodeSum:
        """Begin to sum a part of a tensor.

        Args:
            entry: Which part; its ``form`` says how. No source stands for zeros.
            padded: Elements to sum it as, the last ones zeros.
            to_host: Whether the share is needed in host memory.
        """

    def gather(self, summed: NodeSum) -> None:
        """Begin to put the whole result, scaled, where it belongs, with what all ranks hold of it.

        What is in host memory by then counts, if ``to_host`` was said.
        """

    def abort(self) -> None:
        """Collectives in progress fail, here or at the other ranks."""

    def close(self) -> None:
        """End connections, once what was begun is over."""


class NodeMeeting(Meeting, frozen=True):
    """What an engine needs to find the other ranks of its node.

    Attributes:
        nodes: The ranks of each node.
        node: Those of this one.
    """

    nodes: tuple[tuple[int, ...], ...]
    node: tuple[int, ...]


NodeEngine = Callable[[NodeMeeting], "NodeCollectives | None"]
"""Makes the collectives of one rank; all ranks call it at the same time. None: none, on all ranks."""


class Offer(msgspec.Struct, frozen=True, array_like=True):
    """What a rank has to sum with.

    Attributes:
        device: Tells devices of one host apart; empty: host memory.
        chunk_bytes: How it would cut tensors.
        local_size: Ranks on its node, by what started it; 0: not told.
        lacks: Why it cannot take part, and what to do; empty: it can.
    """

    device: str
    chunk_bytes: int
    local_size: int
    lacks: str = ""


def exchange_offers(own: Offer, rank: int, size: int, board: Board, limit_s: float) -> list[Offer]:
    """What all ranks have, by rank.

    Raises:
        JoinError: A rank has not said so in time.
        PeerLost: One was lost.
    """
    board.set(f"node offer {rank}", msgspec.msgpack.encode(own))
    notes = [board.get(f"node offer {other}", limit_s) for other in range(size)]
    return [msgspec.msgpack.decode(note, type=Offer) for note in notes]


def objection(offers: Sequence[Offer], nodes: Sequence[Sequence[int]]) -> str:
    """Why ranks with these offers cannot sum on their nodes; empty if they can. The same on all ranks."""
    for rank, offer in enumerate(offers):
        if offer.lacks:
            return f"rank {rank} {offer.lacks}"
        if offer.chunk_bytes != offers[0].chunk_bytes:
            return (
                f"rank 0 cuts tensors at {offers[0].chunk_bytes} bytes and rank {rank} at "
                f"{offer.chunk_bytes}; give all the same BYTEPS_COLLECTIVE_BYTES"
            )
    for node in nodes:
        if problem := _among_neighbours([(rank, offers[rank]) for rank in node]):
            return problem
    return ""


def _among_neighbours(node: Sequence[tuple[int, Offer]]) -> str:
    count = Counter(offer.device for _, offer in node)
    device = next((device for device, users in count.items() if device and users > 1), "")
    if device:
        users = [str(rank) for rank, offer in node if offer.device == device]
        return (
            f"ranks {' and '.join(users)} use one GPU ({device}); call torch.cuda.set_device(local_rank) "
            "before init()"
        )
    for rank, offer in node:
        if offer.local_size not in (0, len(node)):
            others = ", ".join(str(other) for other, _ in node)
            return (
                f"rank {rank} was told that its node has {offer.local_size} ranks, but finds ranks {others} "
                "there: containers of one host must share network and host name, and BYTEPS_HIERARCHICAL "
                "must not be off on some ranks only"
            )
    return ""


def refuse(problem: str) -> ConfigError:
    """The error where summing on nodes was asked for."""
    return ConfigError(f"node_collectives cannot be used: {problem}; or set BYTEPS_NODE_COLLECTIVES=off")
