"""The declaration table: which tensor has which number and parts, who knows it, and whether all agree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from byteps.dtypes import ReduceOp
from byteps.errors import ProtocolError
from byteps.placement import Placer, Unplaced
from byteps.wire import Declare, Move, Part, Placement, Refusal, TensorSpec

LARGEST_TENSOR_BYTES = 2**40
LARGEST_BATCH_PARTS = 2**22
"""A declaration's answer stays under the limit of its message even when cut into this many partitions."""

_MUST_MATCH: Final = ("dtype", "shape", "op", "prescale", "postscale", "root", "members", "context")


@dataclass(slots=True, eq=False)
class Tensor:
    """One use of a name in one generation. Only names that ranks finish with have more than one use.

    Attributes:
        id: Its number, never used again.
        spec: What the first rank declared; ``None`` if a rank refused the name before any declared it.
        first_rank: Who declared it first.
        parts: Its partitions; empty once it has failed.
        failure: Why it cannot be used; empty while it can.
        after: The last round that may still end well.
        seen: Ranks that need no further answer about it: they have declared or refused it.
        holders: Ranks that have its placement.
        finished: Ranks that are done with it.
        installs: Requests to servers that are to be answered before a rank may use it.
        before: What stands for the same use of the name until each rank has gone over to this.
        replaced: Whether another stands for this use of the name from some round on.
    """

    id: int
    name: str
    generation: int
    spec: TensorSpec | None
    first_rank: int
    parts: list[Part] = field(default_factory=list)
    failure: str = ""
    after: int = 0
    seen: set[int] = field(default_factory=set)
    holders: set[int] = field(default_factory=set)
    finished: set[int] = field(default_factory=set)
    installs: set[int] = field(default_factory=set)
    before: Tensor | None = None
    replaced: bool = False

    @property
    def servers(self) -> set[int]:
        """Servers that sum a part of it."""
        return {part.server for part in self.parts}

    def answer(self) -> Placement | Refusal:
        """What a rank that declares it is told."""
        if self.failure:
            return Refusal(self.name, self.failure)
        return Placement(self.id, self.generation, self.parts)


@dataclass(slots=True)
class Outcome:
    """What a declaration led to.

    Attributes:
        tensors: One for each that was declared, in order.
        created: Those that no rank had declared before and that have been placed.
        failed: Those that others hold and that this declaration made unusable, with the servers to tell.
    """

    tensors: list[Tensor] = field(default_factory=list)
    created: list[Tensor] = field(default_factory=list)
    failed: list[tuple[Tensor, set[int]]] = field(default_factory=list)


class TensorTable:
    """All tensors of the job.

    Args:
        size: Number of ranks.
        placer: Where tensors are placed.
        partition_bytes: Of new tensors' partitions; 0: as the placer has it.
    """

    def __init__(self, size: int, placer: Placer | Unplaced, partition_bytes: int = 0) -> None:
        self._placer = placer
        self._partition_bytes = partition_bytes
        self._ranks = set(range(size))
        self._size = size
        self._next_id = 0
        self._by_name: dict[tuple[str, int], list[Tensor]] = {}
        self._by_id: dict[int, Tensor] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, tensor: int) -> Tensor | None:
        """The usable tensor with this number; ``None`` for one that failed or is forgotten."""
        return self._by_id.get(tensor)

    def declare(self, rank: int, message: Declare) -> Outcome:
        """A rank declares tensors; those that are new are placed as one batch.

        Raises:
            ProtocolError: The message contradicts itself or this rank's earlier ones; nothing has changed.
        """
        keys = self._checked_keys(rank, message)
        outcome = Outcome()
        for spec, key in zip(message.tensors, keys, strict=True):
            tensor = self._find(rank, key)
            if tensor is None:
                tensor = self._create(rank, spec.name, key[1], spec)
                outcome.created.append(tensor)
            elif not tensor.failure and not _agree(tensor.spec, spec):
                outcome.failed.append(self._fail(tensor, _conflict(rank, spec, tensor)))
            tensor.seen.add(rank)
            outcome.tensors.append(tensor)
        outcome.created = self._place(outcome.created)
        for tensor in outcome.tensors:
            self._forget_if_done(tensor)
        return outcome

    def refuse(
        self, rank: int, name: str, generation: int, message: str, after: int = 0
    ) -> list[tuple[Tensor, set[int]]]:
        """A rank cannot go along with a tensor; nobody can use it then, but for rounds up to ``after``.

        Returns:
            Tensors and the servers to tell, as far as this is news to ranks that hold them.
        """
        tensor = self._find(rank, (name, generation)) or self._create(rank, name, generation, None)
        before = tensor.before if tensor.before and self._by_id.get(tensor.before.id) else None
        # Rounds of what goes over to another number are counted anew: none of them is known to end well.
        if not tensor.failure:
            tensor.after = 0 if before else after
        news = [self._fail(one, message[:8000]) for one in (before, tensor) if one and not one.failure]
        tensor.seen.add(rank)
        tensor.holders.discard(rank)
        self._forget_if_done(tensor)
        return news

    def recut(self, ids: Sequence[int], partition_bytes: int) -> tuple[list[Move], list[Tensor]]:
        """Give tensors that all ranks hold other partitions, under new numbers.

        Args:
            ids: Their numbers. Those that are not to be had, or on the way from one to another, are left out.
            partition_bytes: See ``Placer.place``.

        Returns:
            The moves, with rounds still to be agreed on, and the new tensors, for servers to install.
        """

        def place(old: list[Tensor]) -> list[list[Part]]:
            return self._placer.place([one.spec.nbytes if one.spec else 0 for one in old], partition_bytes)

        return self._replace(ids, place)

    def spread(self, ids: Sequence[int], lanes: int) -> tuple[list[Move], list[Tensor]]:
        """Have the partitions of such tensors travel over so many lanes. Otherwise as ``recut``."""
        return self._replace(ids, lambda old: self._placer.spread([one.parts for one in old], lanes))

    def _replace(
        self, ids: Sequence[int], place: Callable[[list[Tensor]], list[list[Part]]]
    ) -> tuple[list[Move], list[Tensor]]:
        """Give those that can move new numbers, and the partitions that ``place`` has for them."""
        old = [one for one in map(self._by_id.get, ids) if one is not None and self._can_move(one)]
        for one in old:
            self._placer.release(one.parts)
            one.replaced = True
        moves, created = [], []
        for one, parts in zip(old, place(old) if old else [], strict=True):
            uses = self._by_name[one.name, one.generation]
            new = Tensor(self._next_id, one.name, one.generation, one.spec, one.first_rank, parts, before=one)
            new.seen, new.holders = set(one.seen), set(one.holders)
            self._next_id += 1
            uses[uses.index(one)] = self._by_id[new.id] = new
            moves.append(Move(one.id, new.id, [(part.server, part.lane, part.nbytes) for part in parts]))
            created.append(new)
        return moves, created

    def steady(self, ids: Sequence[int]) -> list[Move]:
        """Moves that move nothing, for tensors that could move."""
        found = [one for one in map(self._by_id.get, ids) if one is not None and self._can_move(one)]
        return [Move(one.id, one.id) for one in found]

    def _can_move(self, tensor: Tensor) -> bool:
        """Whether all ranks have gone over to it, and none is about to leave it."""
        if tensor.before is not None and tensor.before.id not in self._by_id:
            tensor.before = None
        spec = tensor.spec
        settled = tensor.before is None and not tensor.replaced and not tensor.finished
        # A broadcast may end at its root before the others have begun: nobody can name a round to come.
        usual = spec is not None and not spec.ephemeral and spec.op != ReduceOp.COPY
        return settled and usual and tensor.holders >= self._ranks

    def finish(self, rank: int, ids: Sequence[int]) -> list[tuple[int, set[int]]]:
        """A rank is done with tensors.

        Returns:
            Number and servers of those that all ranks are done with; they are forgotten.
        """
        done = []
        for tensor in filter(None, map(self._by_id.get, ids)):
            tensor.finished.add(rank)
            if tensor.finished >= self._users(tensor):
                done.append(self._drop(tensor))
        return done

    def depart(self, rank: int) -> list[tuple[int, set[int]]]:
        """A rank left in order, so nothing more will come from it. Returns what ``finish`` does."""
        self._ranks.discard(rank)
        for tensor in [one for uses in self._by_name.values() for one in uses]:
            self._forget_if_done(tensor)
        return [
            self._drop(one)
            for one in list(self._by_id.values())
            if one.finished and one.finished >= self._users(one)
        ]

    def _checked_keys(self, rank: int, message: Declare) -> list[tuple[str, int]]:
        if len(message.tensors) != len(message.generations):
            counts = f"{len(message.tensors)} tensors in {len(message.generations)} generations"
            raise ProtocolError(f"rank {rank} declared {counts}")
        keys = [
            (spec.name, generation)
            for spec, generation in zip(message.tensors, message.generations, strict=True)
        ]
        found = [(key, self._find(rank, key)) for key in keys]
        twice = next((key for key, tensor in found if tensor is not None and rank in tensor.seen), None)
        if twice is None and len(set(keys)) < len(keys):
            twice = next(key for index, key in enumerate(keys) if key in keys[:index])
        if twice is not None:
            raise ProtocolError(f"rank {rank} declared tensor {twice[0]!r} twice as generation {twice[1]}")
        return keys

    def _create(self, rank: int, name: str, generation: int, spec: TensorSpec | None) -> Tensor:
        tensor = Tensor(self._next_id, name, generation, spec, rank)
        self._next_id += 1
        self._by_name.setdefault((name, generation), []).append(tensor)
        return tensor

    def _find(self, rank: int, key: tuple[str, int]) -> Tensor | None:
        """The first use of a name that a rank has not finished: all ranks go through the uses in order."""
        return next((one for one in self._by_name.get(key, ()) if rank not in one.finished), None)

    def _place(self, tensors: list[Tensor]) -> list[Tensor]:
        """Place those that can be used; the others fail. Returns the former."""
        usable: list[tuple[Tensor, int]] = []
        room = LARGEST_BATCH_PARTS * self._placer.partition_bytes
        for tensor in tensors:
            assert tensor.spec is not None
            nbytes = tensor.spec.nbytes
            tensor.failure = _impossible(tensor.spec, self._size, min(room, LARGEST_TENSOR_BYTES))
            if not tensor.failure:
                usable.append((tensor, nbytes))
                room -= nbytes
        places = self._placer.place([nbytes for _, nbytes in usable], self._partition_bytes)
        for (tensor, _), parts in zip(usable, places, strict=True):
            tensor.parts = parts
            self._by_id[tensor.id] = tensor
        return [tensor for tensor, _ in usable]

    def _fail(self, tensor: Tensor, message: str) -> tuple[Tensor, set[int]]:
        """Make a tensor unusable. Ranks that have yet to declare it will get the same message."""
        servers = tensor.servers
        tensor.failure = message
        if not tensor.replaced:
            self._placer.release(tensor.parts)
        tensor.parts = []
        tensor.installs.clear()
        self._by_id.pop(tensor.id, None)
        return tensor, servers

    def _forget_if_done(self, tensor: Tensor) -> None:
        """A failed tensor is remembered until every rank has been told."""
        if tensor.failure and tensor.seen >= self._users(tensor):
            self._remove(tensor)

    def _users(self, tensor: Tensor) -> set[int]:
        """The ranks that take part in a tensor and have not left."""
        return (
            self._ranks.intersection(tensor.spec.members)
            if tensor.spec and tensor.spec.members
            else self._ranks
        )

    def _drop(self, tensor: Tensor) -> tuple[int, set[int]]:
        del self._by_id[tensor.id]
        if not tensor.replaced:
            self._placer.release(tensor.parts)
            self._remove(tensor)
        return tensor.id, tensor.servers

    def _remove(self, tensor: Tensor) -> None:
        uses = self._by_name[tensor.name, tensor.generation]
        uses.remove(tensor)
        if not uses:
            del self._by_name[tensor.name, tensor.generation]


def _conflict(rank: int, spec: TensorSpec, tensor: Tensor) -> str:
    first = tensor.spec
    assert first is not None
    return (
        f"tensor {spec.name!r}: rank {rank} declared {spec.describe()}, but rank {tensor.first_rank} "
        f"declared {first.describe()}; all ranks must submit the same shape, dtype and op under one name"
    )


def _agree(first: TensorSpec | None, other: TensorSpec) -> bool:
    """Whether two ranks mean the same; that one of them uses the name only once does not matter."""
    return first is not None and all(getattr(first, name) == getattr(other, name) for name in _MUST_MATCH)


def _impossible(spec: TensorSpec, size: int, limit_bytes: int) -> str:
    """Why no rank can use such a tensor, or nothing."""
    text = spec.objection(size)
    if spec.nbytes > limit_bytes:
        text = "is too large; submit it in several tensors, and declare fewer at once"
    return text and f"tensor {spec.name!r} ({spec.describe()}) {text}"
