"""``allreduce(op=Adasum)``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from byteps.adapters.adasum import adasum_group
from byteps.adapters.arrays import Array, Round
from byteps.adapters.collectives import CombiningRound
from byteps.adapters.process_sets import Group, ProcessSet
from byteps.dtypes import ReduceOp
from byteps.session import Session
from byteps.tensorflow.differentiable import differentiable_group
from byteps.tensorflow.rounds import Item, carry_out_one, graph_name


@dataclass(frozen=True)
class _Combination:
    """An Adasum with its arguments resolved; see ``Operation``."""

    group: Group
    named: tuple[str, bool]

    def start(self, tensors: Sequence[Any]) -> list[Any]:
        """See ``Operation``."""

        def begin(array: Array) -> Round:
            return CombiningRound(self.group, self.named, array)

        return carry_out_one(Item(begin, tensors, [(one.dtype, one.shape) for one in tensors]))

    def gradients(self, upstream: Sequence[Any]) -> list[Any]:
        """See ``Operation``."""
        raise ValueError(f"{self.named[0]}: Adasum has no gradient here: tf.stop_gradient its input")


def combined(
    tensor: Any,
    name: str | None,
    scales: tuple[float, float] = (1.0, 1.0),
    session: Session | None = None,
    process_set: ProcessSet | None = None,
) -> Any:
    """The combination of a dense tensor over all ranks.

    Raises:
        ValueError: The tensor is not floating-point, or factors are given.
        NotImplementedError: A process set is given.
    """
    if not tensor.dtype.is_floating:
        raise ValueError(f"Adasum needs dense floating-point tensors, not {tensor.dtype.name}")
    name = graph_name(tensor, ReduceOp.SUM) if name is None else name
    return differentiable_group(_Combination(*adasum_group(name, scales, process_set, session)), [tensor])[0]
