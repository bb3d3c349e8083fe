"""Element types and reduction operators, numbered as on the wire and in the native core."""

from __future__ import annotations

import enum

CELL_BYTES = 65536
"""The fixed grid inside a partition: the unit of summation and of "have I got this"."""

GRAIN_BYTES = 16384
"""Partitions are multiples of this but for the last of a tensor."""


class DType(enum.IntEnum):
    """An element type that servers can reduce."""

    FLOAT64 = 0
    FLOAT32 = 1
    FLOAT16 = 2
    BFLOAT16 = 3
    INT8 = 4
    UINT8 = 5
    INT16 = 6
    INT32 = 7
    INT64 = 8
    BOOL = 9

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return ITEM_BYTES[self]

    @property
    def is_floating(self) -> bool:
        """Whether values are floating-point numbers (the dtypes that 16-bit compression applies to)."""
        return self <= DType.BFLOAT16


ITEM_BYTES = (8, 4, 2, 2, 1, 1, 2, 4, 8, 1)
"""Bytes per element, by number of the dtype."""


class ReduceOp(enum.IntEnum):
    """How contributions are combined."""

    SUM = 0
    """Integers wrap around; booleans are combined with "or"."""
    AVERAGE = 1
    """The sum over the number of ranks; integers are truncated toward zero. Not defined for booleans."""
    MIN = 2
    MAX = 3
    PRODUCT = 4
    COPY = 5
    """A broadcast: exactly one rank contributes, all may receive."""
