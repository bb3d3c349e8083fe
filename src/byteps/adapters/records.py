"""What ranks must know of each other's tensors before rows can move: dtype, dimensions, rows for whom.

Each rank fills its own row of a table that all ranks sum, so that one small round tells everybody everything,
and every rank comes to the same verdict about what does not fit together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from byteps.adapters.blocks import Block, describe
from byteps.adapters.process_sets import Group
from byteps.dtypes import DType, ReduceOp
from byteps.errors import DeclarationError
from byteps.session import Buffer, Handle
from byteps.wire import TensorSpec

MOST_DIMENSIONS = 16
_ABSENT, _HEAD = 0, 2  # a column for the dtype (from 1 up; 0: the rank has joined), one for the dimensions
COLUMNS = _HEAD + MOST_DIMENSIONS


class Record(msgspec.Struct, frozen=True):
    """What one rank has said of one tensor.

    Attributes:
        rank: Its global number.
        dtype: Of its tensor.
        shape: Of its tensor.
        splits: How many rows go to each rank of the group, in an ``alltoall``.
    """

    rank: int
    dtype: DType
    shape: tuple[int, ...]
    splits: tuple[int, ...] = ()

    def describe(self) -> str:
        """As error messages show it: ``float32[3, 4]``."""
        return describe([(self.dtype, self.shape)])


def exchange(
    group: Group, kind: str, named: tuple[str, bool], blocks: Sequence[Block], splits: Sequence[int] = ()
) -> Callable[[], list[dict[int, Record]]]:
    """Begin to tell the other ranks of this rank's tensors.

    Args:
        group: The ranks.
        kind: Of the operation, for messages.
        named: The operation's name on the wire, and whether it is used only once.
        blocks: The tensors.
        splits: See ``Record``.

    Returns:
        A function that waits, and returns for each tensor what the ranks have said, by their place in the
        group. Ranks that have joined have said nothing.

    Raises:
        ValueError: A tensor has too many dimensions.
        DeclarationError: By the function, on all ranks: tensors do not fit together.
    """
    name, ephemeral = named
    width = COLUMNS + len(splits)
    table = np.zeros((group.size, len(blocks), width), np.int64)
    for position, block in enumerate(blocks):
        table[group.index, position] = _row(name, block, splits)
    spec = TensorSpec(
        f"{name}.sizes", DType.INT64, table.shape, ReduceOp.SUM, ephemeral=ephemeral, members=group.members
    )
    handle = _submit(group, spec, table)

    def finish() -> list[dict[int, Record]]:
        handle.wait()
        found = [_records(group, table[:, position]) for position in range(len(blocks))]
        for records in found:
            _check(kind, name, list(records.values()))
        return found

    return finish


def _row(name: str, block: Block, splits: Sequence[int]) -> list[int]:
    if len(block.shape) > MOST_DIMENSIONS:
        raise ValueError(f"{name}: {len(block.shape)} dimensions; at most {MOST_DIMENSIONS} can be sent")
    padding = [0] * (MOST_DIMENSIONS - len(block.shape))
    return [int(block.dtype) + 1, len(block.shape), *block.shape, *padding, *splits]


def _submit(group: Group, spec: TensorSpec, table: NDArray[np.int64]) -> Handle:
    memory = Buffer(table.ctypes.data, table.nbytes, table)
    return group.session.submit(spec, memory, memory)


def _records(group: Group, rows: NDArray[np.int64]) -> dict[int, Record]:
    records = {}
    for place, row in enumerate(rows.tolist()):
        if row[0] != _ABSENT:
            shape = tuple(row[_HEAD : _HEAD + row[1]])
            records[place] = Record(group.ranks[place], DType(row[0] - 1), shape, tuple(row[COLUMNS:]))
    return records


def _check(kind: str, name: str, records: Sequence[Record]) -> None:
    """All must have one dtype, and the same dimensions but for the first.

    Raises:
        DeclarationError: Naming two ranks that differ.
    """
    first = records[0]
    for record in records:
        if not record.shape:
            raise DeclarationError(
                f"{kind} of {name!r}: rank {record.rank} gave a scalar, which has no first dimension; "
                "reshape it to (1,)"
            )
        if (record.dtype, record.shape[1:]) != (first.dtype, first.shape[1:]):
            raise DeclarationError(
                f"{kind} of {name!r}: rank {first.rank} has {first.describe()}, but rank {record.rank} has "
                f"{record.describe()}; dtype and all dimensions but the first must be the same on all ranks"
            )
