"""Row-sparse gradients: only the rows that a rank has used travel, and rows of the same index are added.

A rank receives what all use, so it pays while the ranks together use fewer rows than there are.
"""

from __future__ import annotations

import numpy as np

from byteps.adapters.arrays import Array, GatherRound
from byteps.adapters.calls import Call
from byteps.adapters.reductions import Average, Sum


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
        self._group = call.group
        self._gathered = GatherRound(
            self._group, (f"{call.name}.rows", call.ephemeral), _merged(values, indices)
        )

    def wait(self) -> list[Array]:
        """Rows and indices of all ranks, each index once and in order.

        Raises:
            BytePSError: The round failed.
        """
        values, indices = _merged(*(array for array, _ in self._gathered.results()))
        factor = self._call.scales[0] * self._call.scales[1]
        if self._call.op is Average:
            factor /= self._group.size
        return [values if factor == 1 else (values * factor).astype(values.dtype), indices]


def _merged(values: Array, indices: Array) -> tuple[Array, Array]:
    """Each index once, in order, with the sum of its rows."""
    order = np.argsort(indices, kind="stable")
    found, starts = np.unique(indices[order], return_index=True)
    if not len(found):
        return np.array(values), np.array(indices)
    return np.add.reduceat(values[order], starts, axis=0), found
