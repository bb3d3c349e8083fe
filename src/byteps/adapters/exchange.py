"""Python objects between ranks: the length first, then the bytes, each as one broadcast per sender."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byteps.adapters.arrays import buffer
from byteps.adapters.objects import Kind, ObjectCodec
from byteps.adapters.process_sets import ProcessSet, group_of
from byteps.adapters.reductions import checked_root, wire_name
from byteps.dtypes import DType, ReduceOp
from byteps.session import Handle, Session
from byteps.wire import TensorSpec


@dataclass(frozen=True)
class ObjectExchange:
    """Sends objects over one session.

    Attributes:
        session: Where to send.
        codec: Makes bytes of objects.
        allow_pickle: Send what msgpack cannot, and accept it; must be the same on all ranks.
        members: The ranks that take part; all if empty.
    """

    session: Session
    codec: ObjectCodec
    allow_pickle: bool = False
    members: tuple[int, ...] = ()

    def broadcast(self, value: object, root_rank: int, name: str | None) -> object:
        """Give every rank the root's object.

        Args:
            value: The object; only the root's matters.
            root_rank: Who sends.
            name: Identifies the call across ranks; by the order of the calls if not given.

        Returns:
            The root's object: the same on the root, a copy elsewhere.

        Raises:
            TypeError: On the root: the object cannot be sent.
            ValueError: The root cannot send it, or ``root_rank`` is not a rank.
        """
        root = checked_root(self.session, root_rank)
        if self.members and root not in self.members:
            raise ValueError(f"root_rank={root} is not in the process set of ranks {list(self.members)}")
        label = self._label("broadcast_object", name)
        if self.session.rank == root:
            payload, error = self._encode(value)
            self._copy(f"{label}.size", np.array([len(payload)], np.int64), root).wait()
            self._copy(f"{label}.bytes", np.frombuffer(payload, np.uint8), root).wait()
            if error is not None:
                raise error
            return value
        length = np.zeros(1, np.int64)
        self._copy(f"{label}.size", length, root).wait()
        received = np.empty(int(length[0]), np.uint8)
        self._copy(f"{label}.bytes", received, root).wait()
        return self.codec.decode(received.tobytes(), allow_pickle=self.allow_pickle)

    def allgather(self, value: object, name: str | None) -> list[object]:
        """Give every rank the objects of all.

        Args:
            value: This rank's object.
            name: Identifies the call across ranks; by the order of the calls if not given.

        Returns:
            The objects in the order of the ranks; this rank's own is ``value`` itself.

        Raises:
            TypeError: This rank's object cannot be sent.
            ValueError: Another rank's object cannot be sent.
        """
        label = self._label("allgather_object", name)
        own, ranks = self.session.rank, self.members or tuple(range(self.session.size))
        payload, error = self._encode(value)
        sizes = self._gather_sizes(f"{label}.sizes", len(payload))
        parts = {rank: np.empty(int(sizes[rank]), np.uint8) for rank in ranks}
        parts[own] = np.frombuffer(payload, np.uint8)
        handles = [self._copy(f"{label}.bytes.{rank}", part, rank) for rank, part in parts.items()]
        for handle in handles:
            handle.wait()
        if error is not None:
            raise error
        return [value if rank == own else self._decode_from(rank, part) for rank, part in parts.items()]

    def _label(self, kind: str, name: str | None) -> str:
        """The call's name on the wire. Sets have names of their own: one may be in use in several sets."""
        scope = "".join(f"{rank}." for rank in self.members)
        return wire_name(self.session, f"{scope}{kind}", name)[0]

    def _encode(self, value: object) -> tuple[bytes, Exception | None]:
        """Bytes to send in any case: what cannot be sent must not leave the other ranks waiting."""
        try:
            return self.codec.encode(value, allow_pickle=self.allow_pickle), None
        except Exception as error:  # raised once the others know
            return self.codec.failure(f"rank {self.session.rank} could not send its object: {error}"), error

    def _decode_from(self, rank: int, part: NDArray[np.uint8]) -> object:
        try:
            return self.codec.decode(part.tobytes(), allow_pickle=self.allow_pickle)
        except ValueError as error:
            raise ValueError(f"no object from rank {rank}: {error}") from error

    def _copy(self, name: str, data: NDArray[np.generic], root: int) -> Handle:
        """Start to broadcast an array: read on the root, written elsewhere."""
        dtype = DType.INT64 if data.dtype == np.int64 else DType.UINT8
        spec = TensorSpec(
            name, dtype, data.shape, ReduceOp.COPY, root=root, ephemeral=True, members=self.members
        )
        memory = buffer(data)
        sends = self.session.rank == root
        return self.session.submit(spec, memory if sends else None, None if sends else memory)

    def _gather_sizes(self, name: str, own: int) -> NDArray[np.int64]:
        sizes = np.zeros(self.session.size, np.int64)
        sizes[self.session.rank] = own
        spec = TensorSpec(name, DType.INT64, sizes.shape, ReduceOp.SUM, ephemeral=True, members=self.members)
        self.session.submit(spec, buffer(sizes), buffer(sizes)).wait()
        return sizes


def exchange_of(
    process_set: ProcessSet | None, session: Session | None, allow_pickle: bool, kinds: Sequence[Kind] = ()
) -> ObjectExchange:
    """Resolve a call's arguments.

    Args:
        process_set: The ranks that take part; all if None.
        session: The session of ``init()`` if None.
        allow_pickle: As for ``ObjectExchange``.
        kinds: Types that the adapter sends in its own way.
    """
    group = group_of(process_set, session)
    return ObjectExchange(group.session, ObjectCodec(kinds), allow_pickle, group.members)


def broadcast_object(
    obj: object,
    root_rank: int = 0,
    name: str | None = None,
    *,
    allow_pickle: bool = False,
    session: Session | None = None,
) -> Any:
    """Return the root's object, built of plain Python values and numpy arrays; others' are not looked at.

    Args:
        obj: The object.
        root_rank: The rank whose object all get.
        name: Identifies the call across ranks; by the order of calls if not given.
        allow_pickle: Send the object pickled; the same on all ranks. Unpickling runs what the root says.
        session: The session of ``init()`` if not given.

    Raises:
        TypeError, ValueError: The object cannot be sent, or the root is no rank; on all ranks.
        NotInitialized: ``init()`` has not been called.
    """
    return exchange_of(None, session, allow_pickle).broadcast(obj, root_rank, name)


def allgather_object(
    obj: object, name: str | None = None, *, allow_pickle: bool = False, session: Session | None = None
) -> list[Any]:
    """Return every rank's object on every rank, in the order of the ranks. See ``broadcast_object``."""
    return exchange_of(None, session, allow_pickle).allgather(obj, name)
