"""Sparse tensors reduced by the rows that they have."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from byteps.adapters.process_sets import ProcessSet, group_of
from byteps.adapters.reductions import Average, Sum, resolve_op
from byteps.dtypes import ReduceOp
from byteps.session import Session
from byteps.torch.collectives.gathers import Gather


def sparse_allreduce_async(
    tensor: Tensor,
    name: str | None,
    op: ReduceOp,
    process_set: ProcessSet | None = None,
    *,
    session: Session | None = None,
) -> Callable[[], Tensor]:
    """Start to sum or average a sparse tensor over all ranks.

    Entries with the same index are merged before they are sent; then all ranks get all entries.

    Args:
        tensor: Sparse (COO), of the same shape on all ranks.
        name: Identifies the tensor across ranks; by the order of calls if None.
        op: ``Average`` or ``Sum``.
        process_set: The ranks that take part; all if not given.
        session: The session of ``init()`` if not given.

    Returns:
        A function that waits and returns the result, sparse and not coalesced.

    Raises:
        ValueError: The tensor is dense, or ``op`` is another one.
    """
    if tensor.layout != torch.sparse_coo:
        raise ValueError(f"sparse_allreduce_async needs a sparse COO tensor, not {tensor.layout}")
    if resolve_op(None, op) not in (Average, Sum):
        raise ValueError(f"sparse tensors can be averaged or summed, not reduced by {op!r}")
    group = group_of(process_set, session)
    merged = tensor.detach().coalesce()
    gather = Gather(group, group.name("sparse_allreduce", name))
    handle = gather.start([merged.indices().t().contiguous(), merged.values()])

    def result() -> Tensor:
        indices, values = handle.synchronize()
        if op == Average:
            values = values / group.size
        return torch.sparse_coo_tensor(indices.t(), values, tensor.shape, check_invariants=True)

    return result
