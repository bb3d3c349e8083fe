"""``grouped_allreduce``: tensors that are reduced together or not at all. Otherwise as in ``ops``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import torch
from torch import Tensor

from byteps.adapters.arguments import Scaling, check_several, scaled
from byteps.adapters.calls import calls_together, fields_of
from byteps.adapters.handles import ResultHandle
from byteps.adapters.later import begin_all, wait_all
from byteps.adapters.reductions import check_gradient, resolve_op, shown
from byteps.adapters.signatures import takes
from byteps.dtypes import ReduceOp
from byteps.torch.compression import Compression, Compressor
from byteps.torch.reduction import Reduction
from byteps.torch.reductions.groups import differentiable_group
from byteps.torch.tensors import element_type, spec_of

if TYPE_CHECKING:
    from typing_extensions import Unpack


class _Together(msgspec.Struct, frozen=True):
    """A grouped allreduce with its arguments resolved: one reduction for each tensor."""

    reductions: Sequence[Reduction]
    compression: type[Compressor] = Compression.none

    def start(self, tensors: Sequence[Tensor]) -> ResultHandle[list[Tensor]]:
        """See ``GroupOperation.start``."""
        with torch.no_grad():
            packed = [self.compression.compress(tensor) for tensor in tensors]
        handle = self._start([wire for wire, _ in packed], Reduction.out_of_place)
        return handle.map(
            lambda results: [
                self.compression.decompress(result, context)
                for result, (_, context) in zip(results, packed, strict=True)
            ]
        )

    def start_in_place(self, tensors: Sequence[Tensor]) -> ResultHandle[list[Tensor]]:
        """The same with the results in the tensors themselves."""
        return self._start(tensors, Reduction.in_place)

    def gradients(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Reduced together like what they are the gradients of."""
        for one in self.reductions:
            check_gradient(one.name, one.op)
        named = [replace(one, name=f"{one.name}.gradient") for one in self.reductions]
        return differentiable_group(gradients, _Together(named, self.compression))

    def _start(
        self, tensors: Sequence[Tensor], begin: Callable[[Reduction, Tensor], ResultHandle[Tensor]]
    ) -> ResultHandle[list[Tensor]]:
        pairs = list(zip(self.reductions, tensors, strict=True))
        specs = [one.declaration(tensor) for one, tensor in pairs]
        handles = begin_all(pairs[0][0].session, specs, lambda one: begin(*pairs[one]))
        return ResultHandle(pairs[0][0].name, _All(handles), lambda: [one.synchronize() for one in handles])


class _All:
    """Over when all handles are, also if the first has failed: their names are free afterwards."""

    def __init__(self, handles: Sequence[ResultHandle[Tensor]]) -> None:
        self._handles = handles

    def poll(self) -> bool:
        return all(handle.poll() for handle in self._handles)

    def wait(self) -> None:
        wait_all(self._handles)


def _arguments(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp | None = None,
    **scaling: Unpack[Scaling],
) -> tuple[_Together, Sequence[Tensor]]:
    check_several("grouped_allreduce", tensors)
    resolved = resolve_op(average, op)
    for tensor in tensors:
        spec_of(tensor, shown("grouped_allreduce", name), resolved)
    group, scales = scaled(**scaling)
    named = group.name("grouped_allreduce", name)
    described = [(element_type(one, named[0]), one.shape) for one in tensors]
    calls = calls_together(group, named, resolved, scales, described)
    return _Together([Reduction(**fields_of(call)) for call in calls], compression), tensors


def _uncompressed_arguments(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    **scaling: Unpack[Scaling],
) -> tuple[_Together, Sequence[Tensor]]:
    return _arguments(tensors, average, name, Compression.none, op, **scaling)


@takes(_arguments)
def grouped_allreduce(together: _Together, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Reduce several tensors over all ranks and return new tensors that gradients flow through.

    A rank sends all of them at once, and they fail together: a group that differs between ranks in any shape
    or dtype is an error for all of its tensors.

    Args:
        tensors: At least one; each as for ``push_pull``.
        average, compression, op: As for ``allreduce``.
        name: Identifies the group across ranks; by the order of calls if not given.
        scaling: ``prescale_factor``, ``postscale_factor``, ``process_set``, ``session``: see ``allreduce``.
    """
    return differentiable_group(tensors, together)


@takes(_uncompressed_arguments)
def grouped_allreduce_async(together: _Together, tensors: Sequence[Tensor]) -> ResultHandle[list[Tensor]]:
    """Start ``grouped_allreduce``; ``synchronize`` returns the list of new tensors."""
    return together.start(tensors)


@takes(_uncompressed_arguments)
def grouped_allreduce_(together: _Together, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Reduce several tensors over all ranks in place and return them."""
    return together.start_in_place(tensors).synchronize()


@takes(_uncompressed_arguments)
def grouped_allreduce_async_(together: _Together, tensors: Sequence[Tensor]) -> ResultHandle[list[Tensor]]:
    """Start ``grouped_allreduce_``; ``synchronize`` returns the list of tensors."""
    return together.start_in_place(tensors)
