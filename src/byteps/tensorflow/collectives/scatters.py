"""``reducescatter``: a share of the rows of a reduced tensor. Names and errors are as in ``ops``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from byteps.adapters.arguments import Grouped, Scaling, check_several, scaled
from byteps.adapters.arrays import Array, Round
from byteps.adapters.collectives import scatter_round
from byteps.adapters.compression import compressed
from byteps.adapters.reductions import Average, resolve_op
from byteps.adapters.scattering import gradient_factor, shares
from byteps.dtypes import ReduceOp
from byteps.tensorflow.collectives.gathers import Gather
from byteps.tensorflow.compression import Compression
from byteps.tensorflow.differentiable import differentiable_group, once
from byteps.tensorflow.rounds import Item, carry_out_one, graph_name
from byteps.tensorflow.tensors import rows_to_send

if TYPE_CHECKING:
    from typing_extensions import Unpack


class _Scatter(Grouped):
    """A reducescatter with its arguments resolved; see ``Operation``."""

    def start(self, tensors: Sequence[Any]) -> list[Any]:
        """See ``Operation``."""

        def begin(*arrays: Array) -> Round:
            return scatter_round(self.group, self.named, self.op, self.scales, arrays)

        return carry_out_one(Item(begin, tensors, [*map(self._share, tensors)]))

    def gradients(self, upstream: Sequence[Any]) -> list[Any]:
        """The rows' gradients from all ranks."""
        name, ephemeral = self.named
        factor = gradient_factor(name, self.op, self.scales, self.group.size)
        gather = Gather(self.group, (f"{name}.gradient", once(ephemeral)))
        return differentiable_group(gather, [one * tf.cast(factor, one.dtype) for one in upstream])

    def _share(self, tensor: Any) -> tuple[Any, Any]:
        """Dtype and shape of the result, as far as they are known."""
        rows = tensor.shape[0] if tensor.shape.rank else None
        share = None if rows is None else shares(rows, self.group.size)[self.group.index]
        return tensor.dtype, tf.TensorShape([share]).concatenate(tensor.shape[1:])


@tf.autograph.experimental.do_not_convert
def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: ReduceOp = Average,
    name: str | None = None,
    **scaling: Unpack[Scaling],
) -> list[Any]:
    """Reduce tensors over all ranks and return this rank's share of the rows of each as a new tensor.

    The rows are shared out in the order of the ranks, as equally as can be; the first ranks get one more.
    Each rank receives its share only. Gradients flow through it where ``op`` is ``Average`` or ``Sum``.

    Args:
        tensors: At least one, of at least one dimension; the same shapes and dtypes on all ranks.
        device_dense: Accepted for Horovod scripts; means nothing.
        compression: One of ``Compression``, or a class like them.
        op: ``Average``, ``Sum``, ``Min``, ``Max`` or ``Product``.
        name: Identifies the tensors across ranks.
        scaling: ``prescale_factor``, ``postscale_factor``, ``process_set``, ``session``: see ``allreduce``.

    Raises:
        ValueError, TypeError: A tensor cannot be sent or is a scalar, or another argument is wrong.
        DeclarationError: Ranks differ in what must be equal; on all ranks, naming two.
    """
    check_several("reducescatter", tensors)
    op = resolve_op(None, op)
    tensors = [rows_to_send(tensor, "reducescatter", name, op) for tensor in tensors]
    group, scales = scaled(**scaling)
    name = graph_name(tensors[0], op) if name is None else name
    scatter = _Scatter(group, group.name("reducescatter", name), op, scales)
    return compressed(compression, tensors, lambda wires: differentiable_group(scatter, wires))


def reducescatter(tensor: Any, *arguments: Any, **options: Any) -> Any:
    """``grouped_reducescatter`` of one tensor, under its other arguments."""
    return grouped_reducescatter([tensor], *arguments, **options)[0]
