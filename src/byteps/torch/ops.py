"""Calls on single tensors: ``push_pull`` and ``allreduce``, ``broadcast``.

``push_pull`` and ``allreduce`` are the same operation under BytePS's and Horovod's names and argument orders.
A name identifies a tensor across ranks and stands for one shape, dtype and op as long as the job runs. Calls
without a name are matched by their order, which must then be the same on all ranks. ``session=`` is only for
processes that have more than the one session of ``init()``.

All calls raise ``TypeError`` or ``ValueError`` for arguments that cannot work (no tensor; sparse, complex,
average of booleans; a root that is no rank; a name still in flight), ``NotInitialized`` before ``init()``, and
``DeclarationError`` when ranks differ in a tensor's shape, dtype or op. Waiting raises ``BytePSError`` when
the job fails.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from byteps.adapters.current import current
from byteps.adapters.reductions import Average, checked_root, resolve_op, wire_name
from byteps.dtypes import ReduceOp
from byteps.session import Session
from byteps.torch.compression import Compression, Compressor
from byteps.torch.handles import TensorHandle
from byteps.torch.reduction import Reduction, reduction_of
from byteps.torch.tensors import Pending, spec_of, start


def push_pull(
    tensor: Tensor,
    average: bool = True,
    name: str | None = None,
    priority: int | None = None,
    *,
    compression: type[Compressor] = Compression.none,
    version: int = 0,
    session: Session | None = None,
) -> Tensor:
    """Reduce a tensor over all ranks and return the result as a new tensor that gradients flow through.

    Args:
        tensor: Any shape, zero elements included; float64, float32, float16, bfloat16, int8, uint8, int16,
            int32, int64 or, without average, bool. CPU or CUDA.
        average: Divide by the number of ranks (integers truncate toward zero); else sum.
        name: Identifies the tensor across ranks; by the order of calls if not given.
        priority: Higher numbers are sent first; 0 if not given.
        compression: One of ``Compression``, or a class like them.
        version: Accepted for BytePS scripts; means nothing.
        session: The session of ``init()`` if not given.
    """
    reduction = reduction_of(tensor, average, None, name, priority=priority, session=session)
    return reduction.differentiable(tensor, compression)


def push_pull_async(
    tensor: Tensor,
    average: bool = True,
    name: str | None = None,
    priority: int | None = None,
    *,
    version: int = 0,
    session: Session | None = None,
) -> TensorHandle:
    """Start ``push_pull``; ``synchronize`` returns the new tensor. ``tensor`` must not change until then."""
    reduction = reduction_of(tensor, average, None, name, priority=priority, session=session)
    return reduction.out_of_place(tensor)


def push_pull_inplace(
    tensor: Tensor,
    average: bool = True,
    name: str | None = None,
    priority: int | None = None,
    *,
    version: int = 0,
    session: Session | None = None,
) -> Tensor:
    """Reduce a tensor over all ranks in place and return it."""
    return push_pull_async_inplace(tensor, average, name, priority, session=session).synchronize()


def push_pull_async_inplace(
    tensor: Tensor,
    average: bool = True,
    name: str | None = None,
    priority: int | None = None,
    *,
    version: int = 0,
    session: Session | None = None,
) -> TensorHandle:
    """Start ``push_pull_inplace``. The tensor must be left alone until ``synchronize``, which returns it."""
    reduction = reduction_of(tensor, average, None, name, priority=priority, session=session)
    return reduction.in_place(tensor)


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    session: Session | None = None,
) -> Tensor:
    """Reduce a tensor over all ranks and return the result as a new tensor that gradients flow through.

    Args:
        tensor: As for ``push_pull``.
        average: Old way to say ``op=Average`` (True) or ``op=Sum`` (False).
        name: Identifies the tensor across ranks; by the order of calls if not given.
        compression: One of ``Compression``, or a class like them.
        op: ``Average`` (the default), ``Sum``, ``Min``, ``Max`` or ``Product``. Gradients flow through the
            first two.
        prescale_factor: Applied to each contribution before the reduction.
        postscale_factor: Applied to the result.
        session: The session of ``init()`` if not given.
    """
    reduction = _allreduction(tensor, average, name, op, prescale_factor, postscale_factor, session)
    return reduction.differentiable(tensor, compression)


def allreduce_async(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    session: Session | None = None,
) -> TensorHandle:
    """Start ``allreduce``; ``synchronize`` returns the new tensor. ``tensor`` must not change until then."""
    reduction = _allreduction(tensor, average, name, op, prescale_factor, postscale_factor, session)
    return reduction.out_of_place(tensor)


def allreduce_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    session: Session | None = None,
) -> Tensor:
    """Reduce a tensor over all ranks in place and return it."""
    reduction = _allreduction(tensor, average, name, op, prescale_factor, postscale_factor, session)
    return reduction.in_place(tensor).synchronize()


def allreduce_async_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    session: Session | None = None,
) -> TensorHandle:
    """Start ``allreduce_``. The tensor must be left alone until ``synchronize``, which returns it."""
    reduction = _allreduction(tensor, average, name, op, prescale_factor, postscale_factor, session)
    return reduction.in_place(tensor)


def _allreduction(
    tensor: Tensor,
    average: bool | None,
    name: str | None,
    op: ReduceOp | None,
    prescale: float,
    postscale: float,
    session: Session | None,
) -> Reduction:
    return reduction_of(
        tensor, average, op, name, prescale=float(prescale), postscale=float(postscale), session=session
    )


def broadcast(
    tensor: Tensor, root_rank: int, name: str | None = None, *, session: Session | None = None
) -> Tensor:
    """Return the root's tensor as a new tensor that gradients flow through.

    As in Horovod, the root's gradient is the average of all ranks' gradients; elsewhere it is zero.

    Args:
        tensor: As for ``push_pull``, bool included; the same shape and dtype on all ranks.
        root_rank: The rank whose values all get.
        name: Identifies the tensor across ranks; by the order of calls if not given.
        session: The session of ``init()`` if not given.
    """
    result: Tensor = _Broadcast.apply(tensor, _copy_of(tensor, root_rank, name, session))  # type: ignore[no-untyped-call]
    return result


def broadcast_async(
    tensor: Tensor, root_rank: int, name: str | None = None, *, session: Session | None = None
) -> TensorHandle:
    """Start ``broadcast``; ``synchronize`` returns the new tensor. ``tensor`` must not change until then."""
    return _copy_of(tensor, root_rank, name, session).out_of_place(tensor)


def broadcast_(
    tensor: Tensor, root_rank: int, name: str | None = None, *, session: Session | None = None
) -> Tensor:
    """Overwrite a tensor with the root's and return it."""
    return broadcast_async_(tensor, root_rank, name, session=session).synchronize()


def broadcast_async_(
    tensor: Tensor, root_rank: int, name: str | None = None, *, session: Session | None = None
) -> TensorHandle:
    """Start ``broadcast_``. The tensor must be left alone until ``synchronize``, which returns it."""
    return _copy_of(tensor, root_rank, name, session).in_place(tensor)
