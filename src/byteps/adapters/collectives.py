"""Horovod's other collectives as rounds of numpy arrays: see ``arrays.Round``, which each of these is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from byteps.adapters import gathering, scattering
from byteps.adapters.adasum import adasum
from byteps.adapters.arrays import Array, ArrayRound, as_blocks, element_type
from byteps.adapters.calls import calls_together
from byteps.adapters.later import InBackground, Rounds, begin_all, wait_all
from byteps.adapters.process_sets import Group
from byteps.dtypes import ReduceOp


class TogetherRound:
    """Arrays that are reduced together or not at all.

    Args:
        group: The ranks.
        named: Name on the wire, and whether it is used only once.
        op: How to reduce.
        scales: Factors for each contribution and for the result.
        arrays: This rank's.

    Raises:
        ValueError: A dtype cannot be sent.
        DeclarationError: Ranks differ in a shape, a dtype or the op.
    """

    def __init__(
        self,
        group: Group,
        named: tuple[str, bool],
        op: ReduceOp,
        scales: tuple[float, float],
        arrays: Sequence[Array],
    ) -> None:
        described = [(element_type(array.dtype.name, named[0]), array.shape) for array in arrays]
        calls = calls_together(group, named, op, scales, described)
        specs = [call.spec(*one) for call, one in zip(calls, described, strict=True)]
        self._rounds = begin_all(group.session, specs, lambda one: ArrayRound(calls[one], arrays[one]))

    def wait(self) -> list[Array]:
        """See ``Round``; the reduced arrays."""
        wait_all(self._rounds)
        return [one.result for one in self._rounds]


class ExchangeRound:
    """Rows that go to other ranks, and those that come from them.

    Args:
        group: The ranks.
        named: Name on the wire, and whether it is used only once.
        array: This rank's.
        splits: How many rows go to each rank; None: equally many.

    Raises:
        ValueError: The dtype cannot be sent, or ``splits`` do not fit the array.
    """

    def __init__(
        self, group: Group, named: tuple[str, bool], array: Array, splits: Array | Sequence[int] | None
    ) -> None:
        (block,), (make,) = as_blocks(named[0], [array])
        counts = None if splits is None else gathering.whole_splits(splits)
        self._later = InBackground(gathering.alltoall(group, named, block, counts, make))

    def wait(self) -> list[Array]:
        """See ``Round``; the rows, and how many came from each rank (int32)."""
        result, received = self._later.wait()
        return [result, np.array(received, np.int32)]


def scatter_round(
    group: Group,
    named: tuple[str, bool],
    op: ReduceOp,
    scales: tuple[float, float],
    arrays: Sequence[Array],
) -> Rounds[list[Array]]:
    """Begin a reducescatter; arguments and errors are those of ``TogetherRound`` and of ``scattering``."""
    blocks, makers = as_blocks(named[0], arrays)
    return scattering.reducescatter(group, named, blocks, op, scales, makers)


class CombiningRound:
    """An Adasum of an array of floating-point numbers; 16-bit ones are combined in 32 bits.

    Args:
        group: The ranks.
        named: Name on the wire, and whether it is used only once.
        array: This rank's.

    Raises:
        ValueError: The dtype is another one.
    """

    def __init__(self, group: Group, named: tuple[str, bool], array: Array) -> None:
        self._dtype = array.dtype
        wide = np.ascontiguousarray(array, np.float32 if array.dtype.itemsize == 2 else None)
        self._later = InBackground(adasum(group, named, wide))

    def wait(self) -> list[Array]:
        """See ``Round``; the combination."""
        return [self._later.wait().astype(self._dtype, copy=False)]
