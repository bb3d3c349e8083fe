"""``allreduce(op=Adasum)``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import tensorflow as tf

from byteps.adapters.adasum import adasum_group
from byteps.adapters.arrays import Array, Round
from byteps.adapters.collectives import CombiningRound
from byteps.adapters.compression import compressed
from byteps.adapters.process_sets import Group, ProcessSet
from byteps.adapters.reductions import shown
from byteps.dtypes import ReduceOp
from byteps.session import Session
from byteps.tensorflow.differentiable import differentiable_group
from byteps.tensorflow.rounds import Item, carry_out_one, graph_name
from byteps.tensorflow.tensors import tensor_of


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


@tf.autograph.experimental.do_not_convert
def combined(
    value: Any,
    name: str | None,
    compression: Any,
    scales: tuple[float, float],
    process_set: ProcessSet | None,
    session: Session | None,
) -> Any:
    """The combination of a dense tensor of floating-point numbers; arguments are those of ``allreduce``."""
    if isinstance(value, tf.IndexedSlices):
        raise NotImplementedError("Adasum of IndexedSlices is not supported: send tf.convert_to_tensor")
    tensor = tensor_of(value, shown("push_pull", name))
    if not tensor.dtype.is_floating:
        raise ValueError(f"Adasum needs dense floating-point tensors, not {tensor.dtype.name}")
    name = graph_name(tensor, ReduceOp.SUM) if name is None else name
    combination = _Combination(*adasum_group(name, scales, process_set, session))
    return compressed(compression, [tensor], partial(differentiable_group, combination))[0]
