"""``allgather`` and ``alltoall``: rows that move between ranks as they are, each byte once up and once down.

Every piece is a tensor with one root: servers hand the root's bytes to those who want them. A piece for one
rank is a tensor of two members, so that the others have nothing to do with it; where all ranks take part in
everything (all-reduce), everybody gets all rows and keeps its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import msgspec
import numpy as np

from byteps.adapters import records
from byteps.adapters.blocks import Block, Make, ResultT, copy, part
from byteps.adapters.later import wait_all
from byteps.adapters.process_sets import Group
from byteps.adapters.records import Record
from byteps.dtypes import DType, ReduceOp
from byteps.errors import DeclarationError
from byteps.session import Buffer
from byteps.wire import TensorSpec


class _Piece(msgspec.Struct, frozen=True):
    """Rows on their way from one rank.

    Attributes:
        spec: What to declare.
        source: This rank's rows if it is the root.
        target: Where other ranks' rows go; None if this rank does not want them.
    """

    spec: TensorSpec
    source: Buffer | None
    target: Buffer | None


def allgather(
    group: Group, named: tuple[str, bool], blocks: Sequence[Block], make: Sequence[Make[ResultT]]
) -> Callable[[], list[tuple[ResultT, list[int]]]]:
    """Begin to give every rank the rows of all, in the order of the ranks.

    Args:
        group: The ranks.
        named: Name on the wire, and whether it is used only once.
        blocks: This rank's tensors; the first dimension may differ between ranks, down to no rows.
        make: Makes each result.

    Returns:
        A function that waits for the results, each with the number of rows from each rank. It must be called,
        by any thread, without waiting for other ranks.

    Raises:
        ValueError: A tensor has too many dimensions.
        DeclarationError: By the function, on all ranks: the ranks' tensors do not fit together.
    """
    told = records.exchange(group, "allgather", named, blocks)

    def finish() -> list[tuple[ResultT, list[int]]]:
        results, pieces = [], []
        for position, (found, block) in enumerate(zip(told(), blocks, strict=True)):
            counts = [found[place].shape[0] if place in found else 0 for place in range(group.size)]
            result, memory = make[position]((sum(counts), *block.shape[1:]))
            results.append((result, counts))
            at = 0
            for place, count in enumerate(counts):
                rows = part(memory, at, count * block.row_bytes)
                at += rows.nbytes
                pieces.append(_piece(group, f"{named[0]}.{position}", block.memory, rows, place))
        _move(group, pieces)
        return results

    return finish


def alltoall(
    group: Group, named: tuple[str, bool], block: Block, splits: Sequence[int] | None, make: Make[ResultT]
) -> Callable[[], tuple[ResultT, list[int]]]:
    """Begin to send some rows to each rank; every rank gets what is for it, in the order of the senders.

    Args:
        group: The ranks.
        named: Name on the wire, and whether it is used only once.
        block: This rank's tensor.
        splits: How many rows go to each rank, in order; None: equally many.
        make: Makes the result.

    Returns:
        A function that waits for the result, and how many rows came from each rank; see ``allgather``.

    Raises:
        ValueError: ``splits`` do not fit the tensor, or it does not divide equally.
        DeclarationError: By the function, on all ranks: the ranks' tensors do not fit together.
    """
    told = records.exchange(
        group, "alltoall", named, [block], _checked_splits(named[0], group, block, splits)
    )

    def finish() -> tuple[ResultT, list[int]]:
        found = told()[0]
        absent = [group.ranks[place] for place in range(group.size) if place not in found]
        if absent:
            raise DeclarationError(f"alltoall of {named[0]!r}: rank {absent[0]} has joined and takes no rows")
        received = [found[place].splits[group.index] for place in range(group.size)]
        result, memory = make((sum(received), *block.shape[1:]))
        if group.session.communicator.serves_subsets:
            _move(group, _pairs(group, named[0], block, memory, found))
        else:
            _through_all(group, named[0], block, memory, found)
        return result, received

    return finish


def whole_splits(splits: Any) -> list[int]:
    """What ``splits=`` means: a list of integers, or anything that numpy takes for an array of them.

    Raises:
        ValueError: It is something else.
    """
    given = np.asarray(splits)
    if given.ndim != 1 or given.dtype.kind not in "iu":
        raise ValueError(
            f"splits= must be a list of integers or an int32 tensor of one dimension, not {splits!r}"
        )
    return [int(count) for count in given]


def _checked_splits(name: str, group: Group, block: Block, splits: Sequence[int] | None) -> Sequence[int]:
    rows = block.shape[0] if block.shape else 0
    if splits is None:
        if rows % group.size:
            raise ValueError(
                f"{name}: {rows} rows do not divide into {group.size} equal parts; pass splits= to say how "
                "many go to each rank"
            )
        return [rows // group.size] * group.size
    if len(splits) != group.size or min(splits) < 0 or sum(splits) != rows:
        raise ValueError(
            f"{name}: splits {list(splits)} must be {group.size} numbers, one for each rank, none of them "
            f"negative, that sum to the {rows} rows of the tensor"
        )
    return splits


def _piece(group: Group, name: str, source: Buffer, target: Buffer, place: int) -> _Piece:
    """All rows of the rank at ``place``, for everybody."""
    root = group.ranks[place]
    spec = _bytes(f"{name}.from.{root}", target.nbytes, root, group.members)
    if place != group.index:
        return _Piece(spec, None, target)
    copy(source, target)
    return _Piece(spec, source, None)


def _pairs(group: Group, name: str, block: Block, memory: Buffer, found: dict[int, Record]) -> list[_Piece]:
    """What this rank sends and gets, each a tensor of two members."""
    own, pieces = group.index, []
    sent = _parts(block.memory, found[own].splits, block.row_bytes)
    got = _parts(memory, [found[place].splits[own] for place in range(group.size)], block.row_bytes)
    copy(sent[own], got[own])
    for place, rank in enumerate(group.ranks):
        if place == own:
            continue
        here = group.ranks[own]
        members = tuple(sorted((here, rank)))
        out = _bytes(f"{name}.from.{here}.to.{rank}", sent[place].nbytes, here, members)
        back = _bytes(f"{name}.from.{rank}.to.{here}", got[place].nbytes, rank, members)
        pieces += [_Piece(out, sent[place], None), _Piece(back, None, got[place])]
    return pieces


def _through_all(group: Group, name: str, block: Block, memory: Buffer, found: dict[int, Record]) -> None:
    """Everybody gets all rows of all."""
    everything = np.empty(sum(record.shape[0] for record in found.values()) * block.row_bytes, np.uint8)
    whole = _parts(
        Buffer(everything.ctypes.data, everything.nbytes, everything),
        [found[place].shape[0] for place in range(group.size)],
        block.row_bytes,
    )
    _move(group, [_piece(group, name, block.memory, rows, place) for place, rows in enumerate(whole)])
    got = _parts(memory, [found[place].splits[group.index] for place in range(group.size)], block.row_bytes)
    for place, rows in enumerate(whole):
        copy(_parts(rows, found[place].splits, block.row_bytes)[group.index], got[place])


def _parts(memory: Buffer, counts: Sequence[int], row_bytes: int) -> list[Buffer]:
    """Consecutive rows of memory."""
    ends = accumulate(counts, initial=0)
    return [part(memory, at * row_bytes, count * row_bytes) for at, count in zip(ends, counts, strict=False)]


def _bytes(name: str, nbytes: int, root: int, members: tuple[int, ...]) -> TensorSpec:
    return TensorSpec(name, DType.UINT8, (nbytes,), ReduceOp.COPY, root=root, ephemeral=True, members=members)


def _move(group: Group, pieces: Sequence[_Piece]) -> None:
    """Declare all pieces together, and wait until they are where they are to go."""
    moving = [piece for piece in pieces if piece.spec.nbytes]
    if not moving:
        return
    group.session.declare([piece.spec for piece in moving])
    wait_all([group.session.submit(piece.spec, piece.source, piece.target) for piece in moving])
