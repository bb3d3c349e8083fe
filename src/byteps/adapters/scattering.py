"""``reducescatter``: each rank gets its share of the rows of a reduced tensor.

One tensor for each share: all ranks push it, one wants the result, so a rank receives its share and no more.
"""

from __future__ import annotations

from collections.abc import Sequence

from byteps.adapters.blocks import Block, Make, ResultT, describe, part
from byteps.adapters.later import Rounds, begin_all
from byteps.adapters.process_sets import Group
from byteps.adapters.reductions import Sum, check_gradient
from byteps.dtypes import ReduceOp
from byteps.wire import TensorSpec


def shares(rows: int, size: int) -> list[int]:
    """How many rows each rank gets: as equal as can be, the first ones more."""
    return [rows // size + (place < rows % size) for place in range(size)]


def gradient_factor(name: str, op: ReduceOp, scales: tuple[float, float], size: int) -> float:
    """What the gathered gradients of shares are multiplied by; those of a sum by ``size``: Horovod's rule.

    Raises:
        ValueError: The operator has no gradient.
    """
    check_gradient(name, op)
    return scales[0] * scales[1] * (size if op is Sum else 1)


def reducescatter(
    group: Group,
    named: tuple[str, bool],
    blocks: Sequence[Block],
    op: ReduceOp,
    scales: tuple[float, float],
    make: Sequence[Make[ResultT]],
) -> Rounds[list[ResultT]]:
    """Begin to reduce tensors and give each rank its share of the rows.

    Args:
        group: The ranks.
        named: Name on the wire, and whether it is used only once.
        blocks: The tensors, of the same shape and dtype on all ranks.
        op: How to reduce.
        scales: Factors for each contribution and for the result.
        make: Makes each result.

    Raises:
        ValueError: A tensor is a scalar.
        DeclarationError: At the call or by ``wait``, on all ranks: they differ in what must be equal.
    """
    results, submissions = [], []
    for position, (block, make_one) in enumerate(zip(blocks, make, strict=True)):
        if not block.shape:
            raise ValueError(f"{named[0]}: a scalar has no rows to scatter; reshape it to (1,)")
        counts, at = shares(block.shape[0], group.size), 0
        result, memory = make_one((counts[group.index], *block.shape[1:]))
        results.append(result)
        for place, count in enumerate(counts):
            name = f"{named[0]}.{position}.share.{place}"
            shape = (count, *block.shape[1:])
            spec = TensorSpec(
                name,
                block.dtype,
                shape,
                op,
                *scales,
                ephemeral=named[1],
                members=group.members,
                context=f"rows of {describe([(block.dtype, block.shape)])}",
            )
            source = part(block.memory, at, count * block.row_bytes)
            at += source.nbytes
            submissions.append((spec, source, memory if place == group.index else None))
    specs = [spec for spec, _, _ in submissions]
    handles = begin_all(group.session, specs, lambda one: group.session.submit(*submissions[one]))
    return Rounds(handles, lambda: results)
