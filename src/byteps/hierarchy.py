"""Which ranks share a node, and how a tensor's sum divides into sums of the nodes and sums at the servers.

Pure functions: coordinator, servers and workers come to the same answers on their own.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Protocol

import msgspec

from byteps.dtypes import DType, ReduceOp

PIECE_BYTES = 128 << 10
"""What goes through shared memory at a time, at most."""
SLOTS = 8
"""Pieces that each rank has under way per lane: the native core's number."""
SEGMENT_BYTES = 8 << 20
"""Shared memory of each rank."""

_WIDE = (DType.FLOAT64, DType.FLOAT32, DType.INT64, DType.BOOL)
_HALF = (DType.FLOAT16, DType.BFLOAT16)
_EXACT = (ReduceOp.MIN, ReduceOp.MAX)


class Reduced(Protocol):
    """What must be known of a tensor: a ``TensorSpec``, or what a server is told."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> int: ...
    @property
    def op(self) -> int: ...
    @property
    def prescale(self) -> float: ...
    @property
    def postscale(self) -> float: ...
    @property
    def members(self) -> Sequence[int]: ...


def piece_bytes(ranks: int, lanes: int) -> int:
    """Bytes of each area of a segment, so that all areas of ``ranks`` ranks fit in."""
    return min(PIECE_BYTES, SEGMENT_BYTES // (ranks * lanes * SLOTS) // 64 * 64)


def nodes_of(places: Sequence[str]) -> list[list[int]]:
    """The ranks of each node, where at least two ranks share one.

    Args:
        places: By rank, where it is; empty: nowhere that it could share.

    Returns:
        Every rank in one node; none at all if nobody shares.
    """
    found: dict[str, list[int]] = {}
    for rank, place in enumerate(places):
        found.setdefault(place or f"rank {rank}", []).append(rank)
    shared = any(len(ranks) > 1 for ranks in found.values())
    return list(found.values()) if shared else []


class Arithmetic(msgspec.Struct, frozen=True):
    """What is done to contributions: scaled, reduced by ``op``, divided, scaled again and rounded."""

    op: ReduceOp
    prescale: float = 1.0
    postscale: float = 1.0
    divisor: int = 1


class Plan(msgspec.Struct, frozen=True):
    """How a tensor is summed in two steps.

    Attributes:
        node: What the owner of a partition does with the contributions of its node.
        server: What a server does with the sums of the nodes; ``None``: there is one node, which does it all.
        groups: The ranks that take part, by node.
        first: Whose turn it is to own the first partition.
    """

    node: Arithmetic
    server: Arithmetic | None
    groups: tuple[tuple[int, ...], ...]
    first: int

    def owner(self, group: Sequence[int], partition: int) -> int:
        """The rank of a node that sums a partition there, and pushes the sum."""
        return group[(self.first + partition) % len(group)]

    def owners(self, partition: int, size: int) -> list[int]:
        """By rank, who contributes for it. Ranks that take no part stand for themselves."""
        owners = list(range(size))
        for group in self.groups:
            for rank in group:
                owners[rank] = self.owner(group, partition)
        return owners


def plan(spec: Reduced, nodes: Sequence[Sequence[int]]) -> Plan | None:
    """How the ranks of each node sum a tensor first; ``None``: each rank pushes for itself.

    That is so where nobody shares a node, and where a node's sum would not fit the wire's type or would lose
    accuracy: averages and scaled sums of small integers and in half precision, products in half precision.
    """
    among = set(spec.members)
    chosen = [tuple(rank for rank in node if not among or rank in among) for node in nodes]
    groups = tuple(group for group in chosen if group)
    if all(len(group) < 2 for group in groups):
        return None
    steps = _steps(spec, sum(map(len, groups)), len(groups) == 1)
    return None if steps is None else Plan(*steps, groups, zlib.crc32(spec.name.encode()))


def _steps(spec: Reduced, ranks: int, one_node: bool) -> tuple[Arithmetic, Arithmetic | None] | None:
    dtype, op = DType(spec.dtype), ReduceOp(spec.op)
    divisor = ranks if op is ReduceOp.AVERAGE else 1
    whole = Arithmetic(op, spec.prescale, spec.postscale, divisor)
    if one_node:
        return whole, None
    if op is ReduceOp.COPY:
        return whole, whole
    unscaled = spec.prescale == spec.postscale == 1.0
    if dtype in _WIDE or (dtype in _HALF and op in _EXACT):
        return Arithmetic(op, spec.prescale), Arithmetic(op, 1.0, spec.postscale, divisor)
    fits = op is ReduceOp.SUM if dtype in _HALF else op is not ReduceOp.AVERAGE
    return (Arithmetic(op), Arithmetic(op)) if fits and unscaled else None
