"""``allreduce(op=Adasum)``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from byteps.adapters.arrays import Array, Round
from byteps.adapters.collectives import CombiningRound
from byteps.adapters.process_sets import Group
from byteps.tensorflow.differentiable import differentiable_group
from byteps.tensorflow.rounds import Item, carry_out_one


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


def combined(tensor: Any, group: Group, named: tuple[str, bool]) -> Any:
    """The combination of a dense tensor of floating-point numbers; ``adasum_group`` gives the other two."""
    return differentiable_group(_Combination(group, named), [tensor])[0]
