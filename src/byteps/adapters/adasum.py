"""Adasum: gradients combined so that parallel ones are averaged and orthogonal ones added.

Maleki et al., Scaling Distributed Training with Adaptive Summation (MLSys 2021). Vectors a and b become
(1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b, more of them pair by pair. Any combination is a weighted sum of
the ranks' vectors, whose weights follow from the inner products of all pairs alone. So each rank takes one
share of all vectors (an alltoall), one small sum makes the inner products, every rank finds the same weights,
and the shares of the result are gathered: S bytes up and 2 S down, for any number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byteps.adapters.arrays import buffer, maker
from byteps.adapters.blocks import Block
from byteps.adapters.gathering import allgather, alltoall
from byteps.adapters.process_sets import Group, ProcessSet, group_of, sum_small
from byteps.adapters.scattering import shares
from byteps.dtypes import DType
from byteps.errors import DeclarationError
from byteps.session import Session

_DTYPES = {np.dtype(np.float64): DType.FLOAT64, np.dtype(np.float32): DType.FLOAT32}


def adasum(group: Group, named: tuple[str, bool], values: NDArray[Any]) -> Callable[[], NDArray[Any]]:
    """Begin to combine vectors of all ranks.

    Args:
        group: The ranks.
        named: Name on the wire, and whether it is used only once.
        values: This rank's; float32 or float64, of one shape on all ranks, contiguous.

    Returns:
        A function that waits and returns the combination, a new array. See ``gathering.allgather``.

    Raises:
        ValueError: The dtype is another one.
        DeclarationError: By the function: ranks differ in dtype or number of elements.
    """
    if values.dtype not in _DTYPES:
        raise ValueError(f"{named[0]}: Adasum needs float32 or float64, not {values.dtype}")
    name, once = named
    flat = values.reshape(-1)
    counts = shares(flat.size, group.size)
    block = Block(_DTYPES[values.dtype], (flat.size,), buffer(flat))
    exchanged = alltoall(group, (f"{name}.shares", once), block, counts, maker(values))

    def finish() -> NDArray[Any]:
        received, got = exchanged()
        fits = len(set(got)) == 1
        vectors = received.reshape(group.size, -1).astype(np.float64) if fits else np.zeros((group.size, 1))
        facts = np.zeros((group.size + 1, group.size))
        facts[:-1], facts[-1, group.index] = vectors @ vectors.T, flat.size
        sum_small(group, f"{name}.products", facts)
        _check_sizes(name, group, facts[-1])
        own = (weights(facts[:-1]) @ vectors).astype(values.dtype)
        part = Block(block.dtype, own.shape, buffer(own))
        ((result, _),) = allgather(group, (f"{name}.result", once), [part], [maker(values)])()
        return result.reshape(values.shape)

    return finish


def adasum_group(
    name: str | None,
    scales: tuple[float, float],
    process_set: ProcessSet | None,
    session: Session | None,
) -> tuple[Group, tuple[str, bool]]:
    """The ranks, and the name on the wire (and whether it is used only once), that a call's arguments mean.

    Raises:
        ValueError: Factors are given.
        NotImplementedError: A process set is given.
    """
    if scales != (1.0, 1.0):
        raise ValueError("Adasum takes no prescale_factor= or postscale_factor=")
    group = group_of(process_set, session)
    if group.number:
        raise NotImplementedError("Adasum is for all ranks: it takes no process set")
    return group, group.name("adasum", name)


def _check_sizes(name: str, group: Group, sizes: NDArray[np.float64]) -> None:
    for rank, size in zip(group.ranks, sizes, strict=True):
        if size != sizes[0]:
            raise DeclarationError(
                f"Adasum of {name!r}: rank {group.ranks[0]} has {sizes[0]:.0f} elements, but rank {rank} has "
                f"{size:.0f}; all ranks must give the same shape"
            )


def weights(products: NDArray[np.float64]) -> NDArray[np.float64]:
    """How much of each vector is in their combination.

    Args:
        products: The inner products of all pairs.
    """
    vectors = list(np.eye(len(products)))
    while len(vectors) > 1:
        pairs = zip(vectors[::2], vectors[1::2], strict=False)
        alone = vectors[-1:] if len(vectors) % 2 else []
        vectors = [_combined(products, one, other) for one, other in pairs] + alone
    return np.asarray(vectors[0])


def _combined(
    products: NDArray[np.float64], one: NDArray[np.float64], other: NDArray[np.float64]
) -> NDArray[np.float64]:
    between = one @ products @ other
    sizes = [each @ products @ each for each in (one, other)]
    factors = [1 - between / (2 * size) if size > 0 else 1.0 for size in sizes]
    return np.asarray(factors[0] * one + factors[1] * other)
