"""Contributions that differ by rank and position, and the sums that they must give, for every dtype.

Values repeat after ``PERIOD`` elements, so that large results are checked without a second large array.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from byteps.dtypes import DType

Array = npt.NDArray[Any]

PERIOD = 4


def storage(dtype: DType) -> np.dtype[Any]:
    """The numpy type that holds the elements; numpy has no bfloat16, so their bits are unsigned integers."""
    return np.dtype(np.uint16 if dtype is DType.BFLOAT16 else dtype.name.lower())


def fill(array: Array, dtype: DType, rank: int) -> None:
    """Write a rank's contribution.

    Args:
        array: one dimension of ``storage(dtype)``.
        dtype: what its elements are.
        rank: whose contribution.
    """
    period = _stored(_contribution(rank), dtype)
    for offset in range(PERIOD):
        array[offset::PERIOD] = period[offset]


def expected(size: int, dtype: DType) -> Array:
    """The first ``PERIOD`` elements of the sum over ``size`` ranks, as the servers must round it."""
    return _stored(np.sum([_contribution(rank) for rank in range(size)], axis=0), dtype)


def first_difference(result: Array, period: Array) -> int:
    """Index of the first element that is not what it must be; -1 if there is none."""
    wrong = [-1] * PERIOD
    for offset in range(min(PERIOD, len(result))):
        differs = result[offset::PERIOD] != period[offset]
        if differs.any():
            wrong[offset] = offset + PERIOD * int(differs.argmax())
    return min((index for index in wrong if index >= 0), default=-1)


def _contribution(rank: int) -> npt.NDArray[np.int64]:
    return (np.arange(PERIOD, dtype=np.int64) + rank) % PERIOD


def _stored(values: npt.NDArray[np.int64], dtype: DType) -> Array:
    """Integers wrap around; floating-point numbers are rounded to nearest, ties to even."""
    if dtype is not DType.BFLOAT16:
        return values.astype(storage(dtype))
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
