"""``reducescatter``: a share of the rows of a reduced tensor. Names and errors are as in ``ops``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from byteps.adapters import scattering
from byteps.adapters.arguments import Grouped, Scaling, check_several, scaled
from byteps.adapters.handles import ResultHandle
from byteps.adapters.reductions import Average, resolve_op, shown
from byteps.dtypes import ReduceOp
from byteps.torch.collectives.gathers import Gather
from byteps.torch.collectives.memory import block_of, maker
from byteps.torch.compression import Compression, Compressor
from byteps.torch.reductions.groups import differentiable_group
from byteps.torch.tensors import spec_of
from byteps.torch.transfers import TensorHandle

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True)
class _Scatter(Grouped):
    """A reducescatter with its arguments resolved."""

    compression: type[Compressor] = Compression.none

    def start(self, tensors: Sequence[Tensor]) -> ResultHandle[list[Tensor]]:
        """See ``GroupOperation.start``."""
        name = self.named[0]
        with torch.no_grad():
            packed = [self.compression.compress(tensor) for tensor in tensors]
        blocks = [block_of(wire, name) for wire, _ in packed]
        makers = [maker(wire) for wire, _ in packed]
        later = scattering.reducescatter(self.group, self.named, blocks, self.op, self.scales, makers)

        def unpacked() -> list[Tensor]:
            return [
                self.compression.decompress(result, context).to(tensor.device)
                for result, (_, context), tensor in zip(later.wait(), packed, tensors, strict=True)
            ]

        return ResultHandle(name, later, unpacked)

    def gradients(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """The rows' gradients from all ranks; those of a sum times the number of ranks: Horovod's rule."""
        factor = scattering.gradient_factor(self.named[0], self.op, self.scales, self.group.size)
        gather = Gather(self.group, (f"{self.named[0]}.gradient", True))
        return gather.start([gradient * factor for gradient in gradients]).synchronize()


def reducescatter(
    tensor: Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp = Average,
    **scaling: Unpack[Scaling],
) -> Tensor:
    """Reduce a tensor over all ranks and return this rank's share of its rows as a new tensor.

    The rows are shared out in the order of the ranks, as equally as can be; the first ranks get one more.
    Each rank receives its share only. Gradients flow through it where ``op`` is ``Average`` or ``Sum``.

    Args:
        tensor: At least one dimension; the same shape and dtype on all ranks.
        name: Identifies the tensor across ranks; by the order of calls if not given.
        compression: One of ``Compression``, or a class like them.
        op: ``Average``, ``Sum``, ``Min``, ``Max`` or ``Product``.
        scaling: ``prescale_factor``, ``postscale_factor``, ``process_set``, ``session``: see ``allreduce``.

    Raises:
        ValueError, TypeError: The tensor cannot be sent or is a scalar, or another argument is wrong.
        DeclarationError: Ranks differ in what must be equal; on all ranks, naming two.
    """
    return grouped_reducescatter([tensor], name, compression, op, **scaling)[0]


def reducescatter_async(
    tensor: Tensor, name: str | None = None, op: ReduceOp = Average, **scaling: Unpack[Scaling]
) -> TensorHandle:
    """Start ``reducescatter``; ``synchronize`` returns the new tensor; leave ``tensor`` alone until then."""
    return grouped_reducescatter_async([tensor], name, op, **scaling).map(lambda results: results[0])


def grouped_reducescatter(
    tensors: Sequence[Tensor],
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp = Average,
    **scaling: Unpack[Scaling],
) -> list[Tensor]:
    """``reducescatter`` of several tensors together."""
    return differentiable_group(tensors, _scatter(tensors, name, op, compression, scaling))


def grouped_reducescatter_async(
    tensors: Sequence[Tensor],
    name: str | None = None,
    op: ReduceOp = Average,
    **scaling: Unpack[Scaling],
) -> ResultHandle[list[Tensor]]:
    """Start ``grouped_reducescatter``; ``synchronize`` returns the list of new tensors."""
    return _scatter(tensors, name, op, Compression.none, scaling).start(tensors)


def _scatter(
    tensors: Sequence[Tensor],
    name: str | None,
    op: ReduceOp,
    compression: type[Compressor],
    scaling: Scaling,
) -> _Scatter:
    check_several("reducescatter", tensors)
    resolved = resolve_op(None, op)
    for tensor in tensors:
        label = shown("reducescatter", name)
        if not spec_of(tensor, label, resolved).shape:
            raise ValueError(f"{label}: a scalar has no rows to scatter; reshape it to (1,)")
    group, scales = scaled(**scaling)
    return _Scatter(group, group.name("reducescatter", name), resolved, scales, compression)
