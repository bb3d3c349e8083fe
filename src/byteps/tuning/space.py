"""Which sizes are searched, and the closed form that says where to begin.

Everything is a power of two: a step's time changes little between neighbours.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from byteps.wire import Knobs

Point = tuple[int, ...]
"""A place in the space: the exponent of each axis."""

AUTOMATIC = 0
"""In the place of an exponent: the size is automatic."""
DEPTH = 4
"""Partitions that the closed form's credit holds."""
CHUNK_S = 0.0015
"""For so long a chunk takes the link."""
_HYPERCUBES = 100


@dataclass(frozen=True, slots=True)
class Axis:
    """One size.

    Attributes:
        name: A field of ``Knobs``.
        low, high: Smallest and largest exponent of two.
    """

    name: str
    low: int
    high: int

    def at(self, share: float) -> int:
        """The exponent that lies a share, from 0 to below 1, of the way; each has an equal part of it."""
        return self.low + int(share * (self.high - self.low + 1))

    def spread(self, count: int) -> list[int]:
        """Exponents from the smallest to the largest, about equally far from each other."""
        gap = (self.high - self.low) / max(count - 1, 1)
        return list(dict.fromkeys(round(self.low + gap * number) for number in range(count)))


@dataclass(frozen=True, slots=True)
class Space:
    """All sizes that may be tried.

    Attributes:
        axes: What is searched. Other fields of ``Knobs`` stay 0: automatic.
    """

    axes: tuple[Axis, ...]

    def knobs(self, point: Sequence[int]) -> Knobs:
        """The sizes of a place."""
        named = zip((axis.name for axis in self.axes), point, strict=True)
        return Knobs(**{name: 1 << each for name, each in named if each != AUTOMATIC})

    def point(self, knobs: Knobs) -> Point | None:
        """The nearest place; None where a searched size is automatic."""
        values = [getattr(knobs, axis.name) for axis in self.axes]
        if not all(values):
            return None
        return self.nearest(dict(zip((axis.name for axis in self.axes), values, strict=True)))

    def nearest(self, sizes: Mapping[str, float]) -> Point:
        """The place nearest to some sizes in bytes."""
        exponents = [round(math.log2(max(sizes[axis.name], 1.0))) for axis in self.axes]
        return tuple(
            min(max(each, axis.low), axis.high) for each, axis in zip(exponents, self.axes, strict=True)
        )

    def evenly(self, count: int, chance: random.Random) -> list[Point]:
        """Places that fill the space: a Latin hypercube (McKay et al., 1979), the most even one of several.

        Along each axis every one of ``count`` equal parts has one of them.
        """

        def hypercube() -> list[tuple[float, ...]]:
            columns = [chance.sample(range(count), count) for _ in self.axes]
            return [
                tuple((part + chance.random()) / count for part in row) for row in zip(*columns, strict=True)
            ]

        def closest(shares: list[tuple[float, ...]]) -> float:
            return min(itertools.starmap(math.dist, itertools.combinations(shares, 2)), default=0.0)

        best = max((hypercube() for _ in range(_HYPERCUBES)), key=closest)
        return [tuple(axis.at(share) for axis, share in zip(self.axes, row, strict=True)) for row in best]

    def points(self) -> Iterator[Point]:
        """All places."""
        return itertools.product(*(range(axis.low, axis.high + 1) for axis in self.axes))


SERVER_SPACE = Space(
    (Axis("partition_bytes", 14, 24), Axis("credit_bytes", 15, 25), Axis("chunk_bytes", 16, 19))
)
"""With servers: partitions from one grain of 16 KiB on, chunks of 1 to 8 cells."""
COLLECTIVE_SPACE = Space(
    (Axis("partition_bytes", 16, 24), Axis("credit_bytes", 17, 26), Axis("fusion_bytes", 14, 24))
)
"""With all-reduce: larger tensors are cut to one size, smaller ones fused up to another."""


def closed_form(space: Space, step_bytes: float, rate: float, overhead_s: float) -> Point:
    """Where a step should be about fastest.

    Cutting S bytes into partitions of d costs theta S / d; an urgent partition waits behind the credit of m
    partitions, and the last one's result behind itself: (m + 1) d / R. Their sum is least at
    d = sqrt(S R theta / (m + 2)), after the analysis of ByteScheduler (Peng et al., SOSP 2019).

    Args:
        space: What may be chosen.
        step_bytes: S, bytes of all tensors in a step.
        rate: R, bytes per second of a worker's link.
        overhead_s: theta, what each partition costs besides its bytes.
    """
    best = math.sqrt(max(step_bytes * rate * overhead_s, 1.0) / (DEPTH + 2))
    return space.nearest(
        {
            "partition_bytes": best,
            "credit_bytes": DEPTH * best,
            "chunk_bytes": CHUNK_S * rate,
            "fusion_bytes": best,
        }
    )
