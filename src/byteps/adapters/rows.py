"""Row-sparse gradients: only the rows that a rank has used travel, and rows of the same index are added.

A round's first half tells all ranks how many rows each has; its second half gives the rows of each rank to
the others. A rank receives what all use, so it pays while the ranks together use fewer rows than there are.
"""

from __future__ import annotations

import numpy as np

from byteps.adapters.arrays import Array, buffer, element_type
from byteps.adapters.calls import Call
from byteps.adapters.reductions import Average, Sum
from byteps.dtypes import DType, ReduceOp
from byteps.session import Handle
from byteps.wire import TensorSpec


class RowRound:
    """One round of one row-sparse tensor.

    Args:
        call: The round; ``Sum`` or ``Average``.
        values: Rows [n, ...]; how many may differ between ranks.
        indices: Which row each is [n], int32 or int64; an index may come more than once.

    Raises:
        NotImplementedError: The operator is neither Sum nor Average.
        ValueError: The dtype cannot be sent.
    """

    def __init__(self, call: Call, values: Array, indices: Array) -> None:
        if call.op not in (Sum, Average):
            raise NotImplementedError(
                f"{call.name}: {call.op.name.title()} of IndexedSlices is not supported. Send "
                "tf.convert_to_tensor(slices)"
            )
        self._call = call
        self._label = call.session.next_name(call.name)  # rows differ in number from round to round
        self._rows = _merged(values, indices)
        self._sizes = np.zeros(call.session.size, np.int64)
        self._sizes[call.session.rank] = len(self._rows[1])
        self._pending = self._submit("sizes", self._sizes, ReduceOp.SUM, -1)

    def wait(self) -> list[Array]:
        """Rows and indices of all ranks, each index once and in order.

        Raises:
            BytePSError: The round failed.
        """
        self._pending.wait()
        session = self._call.session
        parts = [self._rows if rank == session.rank else self._empty(rank) for rank in range(session.size)]
        handles = [
            self._submit(f"{rank}.{number}", array, ReduceOp.COPY, rank)
            for rank, part in enumerate(parts)
            for number, array in enumerate(part)
            if self._sizes[rank]
        ]
        for handle in handles:
            handle.wait()
        values, indices = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        values, indices = _merged(values, indices)
        factor = self._call.scales[0] * self._call.scales[1]
        if self._call.op is Average:
            factor /= session.size
        return [values if factor == 1 else (values * factor).astype(values.dtype), indices]

    def _empty(self, rank: int) -> tuple[Array, Array]:
        values, indices = self._rows
        rows = int(self._sizes[rank])
        return np.empty((rows, *values.shape[1:]), values.dtype), np.empty(rows, indices.dtype)

    def _submit(self, name: str, array: Array, op: ReduceOp, root: int) -> Handle:
        session, memory = self._call.session, buffer(array)
        dtype = DType.INT64 if op is ReduceOp.SUM else element_type(array.dtype.name, self._call.name)
        spec = TensorSpec(f"{self._label}.{name}", dtype, array.shape, op, root=root, ephemeral=True)
        sends, receives = root in (-1, session.rank), root != session.rank
        source, target = memory if sends else None, memory if receives else None
        return session.submit(spec, source, target, priority=self._call.priority)


def _merged(values: Array, indices: Array) -> tuple[Array, Array]:
    """Each index once, in order, with the sum of its rows."""
    order = np.argsort(indices, kind="stable")
    found, starts = np.unique(indices[order], return_index=True)
    if not len(found):
        return np.array(values), np.array(indices)
    return np.add.reduceat(values[order], starts, axis=0), found
