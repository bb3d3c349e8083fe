"""Process sets: some of the ranks, which reduce and exchange tensors among themselves. Horovod's rules."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from byteps.adapters import current
from byteps.adapters.reductions import wire_name
from byteps.dtypes import DType, ReduceOp
from byteps.errors import ConfigError
from byteps.session import Buffer, Session
from byteps.wire import TensorSpec

# What adapters export.
__all__ = ["ProcessSet", "add_process_set", "global_process_set", "remove_process_set"]


class Group(msgspec.Struct, frozen=True):
    """The ranks that take part in an operation, of which this one is a member.

    Attributes:
        session: Of this rank.
        ranks: Their global numbers, in order.
        number: Of the process set; 0: all ranks.
    """

    session: Session
    ranks: tuple[int, ...]
    number: int = 0

    @property
    def size(self) -> int:
        """How many ranks."""
        return len(self.ranks)

    @property
    def index(self) -> int:
        """This rank's place among them."""
        return self.ranks.index(self.session.rank)

    @property
    def members(self) -> tuple[int, ...]:
        """What tensors of the group declare as their members."""
        return self.ranks if self.number else ()

    def name(self, kind: str, name: str | None) -> tuple[str, bool]:
        """The wire name of a tensor, and whether it is used only once: see ``reductions.wire_name``.

        Sets have names of their own: one may be in use in several sets at a time.
        """
        return wire_name(self.session, f"set{self.number}.{kind}" if self.number else kind, name)


class ProcessSet:
    """Some of the ranks.

    Args:
        ranks: Their global numbers.

    Raises:
        ValueError: ``ranks`` holds something else than different ranks.
    """

    def __init__(self, ranks: Iterable[int]) -> None:
        try:
            chosen = sorted(operator.index(rank) for rank in ranks)
        except TypeError as error:
            raise ValueError(
                f"ProcessSet takes a list of ranks, not {ranks!r}; MPI communicators are not supported"
            ) from error
        if not chosen or chosen[0] < 0 or len(set(chosen)) < len(chosen):
            raise ValueError(f"ProcessSet needs at least one rank, from 0 up and each once, not {chosen}")
        self._ranks = chosen
        self._session: Session | None = None
        self._number: int | None = None

    @property
    def process_set_id(self) -> int | None:
        """Number of the set; None until it is registered."""
        return self._number

    @property
    def ranks(self) -> list[int] | None:
        """Global numbers of the ranks, in order."""
        return list(self._ranks)

    @property
    def mpi_comm(self) -> None:
        """Always None: nothing here uses MPI."""
        return None

    def included(self) -> bool | None:
        """Whether this rank is in the set; None until the set is registered."""
        session = self.session
        return None if session is None else session.rank in (self.ranks or ())

    def size(self) -> int | None:
        """How many ranks the set has; None until it is registered."""
        return None if self.session is None else len(self.ranks or ())

    def rank(self) -> int | None:
        """This rank's place in the set; None until the set is registered.

        Raises:
            ValueError: This rank is not in the set.
        """
        if self.session is None:
            return None
        if not self.included():
            raise ValueError(f"rank {self.session.rank} is not in {self}")
        return (self.ranks or []).index(self.session.rank)

    @property
    def session(self) -> Session | None:
        """Where the set is registered."""
        return self._session

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"

    def enter(self, session: Session, number: int) -> None:
        """The set is registered now."""
        self._session, self._number = session, number

    def leave(self) -> None:
        """The set is not registered any more."""
        self._session = self._number = None


@dataclass(frozen=True, init=False, repr=False)
class _AllRanks(ProcessSet):
    """All ranks of the current session."""

    def __init__(self) -> None:
        """Nothing is kept."""

    @property
    def process_set_id(self) -> int | None:
        return 0

    @property
    def ranks(self) -> list[int] | None:
        return list(range(self.session.size)) if self.session is not None else None

    @property
    def session(self) -> Session | None:
        return current.current() if current.is_initialized() else None


global_process_set = _AllRanks()
"""The set of all ranks; its ``ranks`` is None before ``init()``."""


def add_process_set(process_set: ProcessSet | Iterable[int], *, session: Session | None = None) -> ProcessSet:
    """Register a process set. All ranks call this, with the same ranks, in the same order.

    Args:
        process_set: A set, or the ranks to make one of.
        session: The session of ``init()`` if not given.

    Returns:
        The set, which operations take as ``process_set=`` on its members from now on.

    Raises:
        ValueError: It holds what is no rank, exists already, or differs between ranks.
        ConfigError: The communicator cannot serve some of the ranks alone.
        NotInitialized: ``init()`` has not been called.
    """
    session = current.current() if session is None else session
    added = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    if added is global_process_set or added.process_set_id is not None:
        raise ValueError(f"{added} is registered already")
    ranks = tuple(added.ranks or ())
    wishes = _wishes(session, ranks)
    for other, wish in enumerate(wishes):
        if wish != wishes[0]:
            raise ValueError(
                f"add_process_set: rank 0 adds ranks {wishes[0]}, rank {other} adds {wish}; all must add the "
                "same"
            )
    if ranks[-1] >= session.size:
        raise ValueError(f"{added} does not fit this job: its ranks are 0 to {session.size - 1}")
    if ranks in session.process_sets:
        raise ValueError(f"a process set of ranks {list(ranks)} exists already: use that one")
    if not session.communicator.serves_subsets:
        raise ConfigError(
            "process sets need servers: with communicator = allreduce all ranks take part in every collective"
        )
    session.process_sets.append(ranks)
    added.enter(session, len(session.process_sets) - 1)
    session.on_shutdown.append(lambda: _leave(added, session))
    return added


def remove_process_set(process_set: ProcessSet, *, session: Session | None = None) -> bool:
    """Forget a process set. All ranks call this, when nothing of the set is in flight.

    Returns:
        False if it is the set of all ranks or not registered.
    """
    session = current.current() if session is None else session
    number = process_set.process_set_id
    if not number or process_set.session is not session:
        return False
    session.process_sets[number] = None
    process_set.leave()
    return True


def _leave(process_set: ProcessSet, session: Session) -> None:
    """Whoever calls ``init()`` again may register the set again."""
    if process_set.session is session:
        process_set.leave()


def group_of(process_set: ProcessSet | None, session: Session | None) -> Group:
    """The ranks that an operation's ``process_set=`` and ``session=`` mean.

    Raises:
        ValueError: The set is not registered, or does not include this rank.
        TypeError: It is no process set.
        NotInitialized: ``init()`` has not been called.
    """
    session = current.current() if session is None else session
    if process_set is None or process_set is global_process_set:
        return Group(session, tuple(range(session.size)))
    if not isinstance(process_set, ProcessSet):
        raise TypeError(f"process_set= must be a ProcessSet, not {process_set!r}")
    if process_set.process_set_id is None or process_set.session is not session:
        raise ValueError(f"{process_set} is not registered: call add_process_set first, on all ranks")
    if not process_set.included():
        raise ValueError(f"rank {session.rank} is not in {process_set}, so it cannot take part")
    return Group(session, tuple(process_set.ranks or ()), process_set.process_set_id)


def group_of_member(process_set: ProcessSet | None, session: Session | None) -> Group | None:
    """``group_of`` for those who go on by themselves where they are not in the set: then None."""
    outside = isinstance(process_set, ProcessSet) and process_set.included() is False
    return None if outside else group_of(process_set, session)


def ranks_of(process_set_id: int) -> tuple[int, ...]:
    """The ranks of a process set of the current session, by its number.

    Raises:
        ValueError: There is no such set.
        NotInitialized: ``init()`` has not been called.
    """
    known = current.current().process_sets
    ranks = known[process_set_id] if 0 <= process_set_id < len(known) else None
    if ranks is None:
        raise ValueError(f"there is no process set {process_set_id}: call add_process_set first")
    return ranks


def refuse_process_set(process_set: object) -> None:
    """Raise ValueError where only all ranks can take part and some are asked for."""
    if process_set is not None and process_set is not global_process_set:
        raise ValueError(
            f"process_set= is not supported here, all ranks take part: leave out {process_set!r}"
        )


def wait_for_members(group: Group) -> None:
    """Wait until all ranks of a group have called this."""
    sum_small(group, group.name("barrier", None)[0], np.zeros(1, np.int64))


def _wishes(session: Session, ranks: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The ranks that each rank wants to add. All see the same, so that all come to the same verdict."""
    table = np.zeros((session.size, session.size + 1), np.int64)
    own = table[session.rank]
    own[[rank for rank in ranks if rank < session.size]] = 1
    own[-1] = next((rank for rank in ranks if rank >= session.size), 0)
    everybody = group_of(None, session)
    sum_small(everybody, everybody.name("process_set", None)[0], table)
    beyond = [() if row[-1] == 0 else (int(row[-1]),) for row in table]
    return [(*map(int, row[:-1].nonzero()[0]), *more) for row, more in zip(table, beyond, strict=True)]


def sum_small(group: Group, name: str, array: NDArray[Any]) -> None:
    """Sum an array over the ranks of a group, in place, under a name that is used once.

    Args:
        group: The ranks.
        name: On the wire.
        array: int64 or float64, contiguous.
    """
    dtype = DType.FLOAT64 if array.dtype == np.float64 else DType.INT64
    spec = TensorSpec(name, dtype, array.shape, ReduceOp.SUM, ephemeral=True, members=group.members)
    memory = Buffer(array.ctypes.data, array.nbytes, array)
    group.session.submit(spec, memory, memory).wait()
