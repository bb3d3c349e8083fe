"""``allreduce``: ``push_pull`` under Horovod's name, with its argument order, operators and process sets.

Names and errors are as in ``ops``.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from byteps.adapters.calls import fields_of, reduction_call
from byteps.adapters.handles import synchronize
from byteps.adapters.process_sets import ProcessSet
from byteps.adapters.reductions import Adasum, Operator
from byteps.adapters.signatures import takes
from byteps.session import Session
from byteps.torch.compression import Compression, Compressor
from byteps.torch.differentiable import differentiable
from byteps.torch.reduction import Reduction
from byteps.torch.reductions.adasum import combining_of
from byteps.torch.tensors import spec_of
from byteps.torch.transfers import TensorHandle


def _allreduce_arguments(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: Operator | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet | None = None,
    *,
    session: Session | None = None,
) -> tuple[Reduction, Tensor]:
    scales = (float(prescale_factor), float(postscale_factor))
    if op == Adasum:
        return combining_of(tensor, name, scales, session, process_set), tensor
    where: Any = {"session": session, "process_set": process_set}
    call = reduction_call(partial(spec_of, tensor), average, op, name, scales=scales, **where)
    return Reduction(**fields_of(call), compression=compression), tensor


def _uncompressed_arguments(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Operator | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet | None = None,
    *,
    session: Session | None = None,
) -> tuple[Reduction, Tensor]:
    scales = (prescale_factor, postscale_factor)
    return _allreduce_arguments(
        tensor, average, name, Compression.none, op, *scales, process_set, session=session
    )


@takes(_allreduce_arguments)
def allreduce(reduction: Reduction, tensor: Tensor) -> Tensor:
    """Reduce a tensor over all ranks and return the result as a new tensor that gradients flow through.

    Args:
        tensor: As for ``push_pull``.
        average: Old way to say ``op=Average`` (True) or ``op=Sum`` (False).
        name: Identifies the tensor across ranks; by the order of calls if not given.
        compression: One of ``Compression``, or a class like them.
        op: ``Average`` (the default), ``Sum``, ``Min``, ``Max``, ``Product`` or ``Adasum``. Gradients flow
            through the first two.
        prescale_factor: Applied to each contribution before the reduction.
        postscale_factor: Applied to the result.
        process_set: The ranks that take part; all if not given.
        session: The session of ``init()`` if not given.
    """
    return differentiable(tensor, reduction)


@takes(_uncompressed_arguments)
def allreduce_async(reduction: Reduction, tensor: Tensor) -> TensorHandle:
    """Start ``allreduce``; ``synchronize`` returns the new tensor. ``tensor`` must not change until then."""
    return reduction.out_of_place(tensor)


@takes(_uncompressed_arguments)
def allreduce_(reduction: Reduction, tensor: Tensor) -> Tensor:
    """Reduce a tensor over all ranks in place and return it."""
    return synchronize(reduction.in_place(tensor))


@takes(_uncompressed_arguments)
def allreduce_async_(reduction: Reduction, tensor: Tensor) -> TensorHandle:
    """Start ``allreduce_``. The tensor must be left alone until ``synchronize``, which returns it."""
    return reduction.in_place(tensor)
