"""``grouped_allreduce``: tensors that are reduced together or not at all. Otherwise as in ``ops``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from byteps.adapters.arguments import Grouped, Scaling, check_several, scaled
from byteps.adapters.arrays import Array, Round
from byteps.adapters.collectives import TogetherRound
from byteps.adapters.compression import compressed
from byteps.adapters.reductions import check_gradient, resolve_op, shown
from byteps.dtypes import ReduceOp
from byteps.tensorflow.collectives.allreduce import allreduce
from byteps.tensorflow.compression import Compression
from byteps.tensorflow.differentiable import differentiable_group, once
from byteps.tensorflow.rounds import Item, carry_out_one, graph_name
from byteps.tensorflow.tensors import check, tensor_of

if TYPE_CHECKING:
    from typing_extensions import Unpack


class _Together(Grouped):
    """A grouped allreduce with its arguments resolved; see ``Operation``."""

    def start(self, tensors: Sequence[Any]) -> list[Any]:
        """See ``Operation``."""

        def begin(*arrays: Array) -> Round:
            return TogetherRound(self.group, self.named, self.op, self.scales, arrays)

        return carry_out_one(Item(begin, tensors, [(one.dtype, one.shape) for one in tensors]))

    def gradients(self, upstream: Sequence[Any]) -> list[Any]:
        """Reduced together like what they are the gradients of."""
        name, ephemeral = self.named
        check_gradient(name, self.op)
        return differentiable_group(replace(self, named=(f"{name}.gradient", once(ephemeral))), upstream)


@tf.autograph.experimental.do_not_convert
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: ReduceOp | None = None,
    name: str | None = None,
    **scaling: Unpack[Scaling],
) -> list[Any]:
    """Reduce several tensors over all ranks and return new tensors that gradients flow through.

    A rank sends all dense ones at once, and they fail together: a group that differs between ranks in any
    shape or dtype is an error for all of its tensors. ``IndexedSlices`` among them are reduced one by one.

    Args:
        tensors: At least one; each as for ``push_pull``.
        average, compression, op: As for ``allreduce``, without Adasum.
        device_dense, device_sparse: Accepted for Horovod scripts; mean nothing.
        name: Identifies the group across ranks.
        scaling: ``prescale_factor``, ``postscale_factor``, ``process_set``, ``session``: see ``allreduce``.
    """
    check_several("grouped_allreduce", tensors)
    op = resolve_op(average, op)
    label = shown("grouped_allreduce", name)
    found = [one if isinstance(one, tf.IndexedSlices) else tensor_of(one, label) for one in tensors]
    places = [place for place, one in enumerate(found) if not isinstance(one, tf.IndexedSlices)]
    for place in places:
        check(found[place], label, op)
    group, scales = scaled(**scaling)
    if places:
        dense = [found[place] for place in places]
        known = graph_name(dense[0], op) if name is None else name
        together = _Together(group, group.name("grouped_allreduce", known), op, scales)
        results = compressed(compression, dense, lambda wires: differentiable_group(together, wires))
        for place, result in zip(places, results, strict=True):
            found[place] = result
    for place in sorted(set(range(len(found))) - set(places)):
        rows = None if name is None else f"{name}.{place}"
        found[place] = allreduce(found[place], op=op, name=rows, **scaling)
    return found
