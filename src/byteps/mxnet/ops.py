"""``push_pull``, ``allreduce`` and ``broadcast`` of arrays, within MXNet's engine: no call waits.

The result of a call is an array like that of any operator of MXNet: who reads it waits for it, and gets the
error if there is none, as a ``BytePSError``. A name identifies an array across ranks and stands for one
shape, dtype and op as long as the job runs; calls without a name are matched by their order. ``session=`` is
only for processes that have more than the one session of ``init()``.

All calls raise ``TypeError`` or ``ValueError`` for arguments that cannot work, and ``NotInitialized``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import mxnet as mx

from byteps.adapters.calls import Call, copy_call, reduction_call
from byteps.adapters.process_sets import ProcessSet
from byteps.adapters.reductions import Average, Sum
from byteps.dtypes import ReduceOp
from byteps.mxnet.compression import Compression
from byteps.mxnet.rounds import begin
from byteps.mxnet.tensors import check
from byteps.session import Session


def push_pull(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    *,
    compression: Any = Compression.none,
    **options: Any,
) -> Any:
    """Reduce an array over all ranks; gradients flow through it.

    Args:
        tensor: ``mx.nd.NDArray`` or ``mx.np.ndarray``, dense, in the host's memory: float64, float32,
            float16, int8, uint8, int32, int64 or, without average, bool; any shape.
        average: Old way to say ``op=Average`` (True) or ``op=Sum`` (False).
        name: Identifies the array across ranks.
        priority: Higher numbers are sent first.
        compression: One of ``Compression``, or a class like them.
        options: ``op``, which is ``Average`` (the default), ``Sum``, ``Min``, ``Max`` or ``Product``;
            ``prescale_factor`` for each contribution, ``postscale_factor`` for the result; ``process_set``,
            the ranks that take part, all if not given; ``session``, that of ``init()`` if not given.

    Returns:
        A new array of the same shape and dtype.
    """
    call = _reduction(tensor, average, name, priority, **options)
    wire, context = compression.compress(tensor)
    return compression.decompress(_carried_out(call, wire), context)


allreduce: Final = push_pull
"""Horovod's name."""


def allreduce_(
    tensor: Any, average: bool | None = None, name: str | None = None, priority: int = 0, **options: Any
) -> Any:
    """Reduce an array over all ranks in place, and return it. See ``push_pull``; it has no gradient."""
    begin(_reduction(tensor, average, name, priority, **options), tensor)
    return tensor


def grouped_allreduce(
    tensors: Sequence[Any], average: bool | None = None, name: str | None = None, **options: Any
) -> list[Any]:
    """``allreduce`` of several arrays; the options are its own. The first is the most urgent."""
    return [allreduce(*each, **rest) for each, rest in _members(tensors, average, name, options)]


def grouped_allreduce_(
    tensors: Sequence[Any], average: bool | None = None, name: str | None = None, **options: Any
) -> list[Any]:
    """``allreduce_`` of several arrays; the options are its own. The first is the most urgent."""
    return [allreduce_(*each, **rest) for each, rest in _members(tensors, average, name, options)]


def _members(tensors: Sequence[Any], average: Any, name: Any, options: dict[str, Any]) -> list[Any]:
    names = [None if name is None else f"{name}_{place + 1}of{len(tensors)}" for place in range(len(tensors))]
    first = options.pop("priority", 0)
    pairs = enumerate(zip(tensors, names, strict=True))
    return [((one, average, label, first - place), options) for place, (one, label) in pairs]


def byteps_push_pull(
    tensor: Any,
    version: int = 0,
    priority: int = 0,
    name: str | None = None,
    is_average: bool = True,
    *,
    session: Session | None = None,
) -> None:
    """Reduce an array over all ranks in place.

    Args:
        tensor: See ``push_pull``.
        version: Accepted for BytePS scripts; means nothing.
        priority, name: See ``push_pull``.
        is_average: Whether to average, or else to add.
        session: The session of ``init()`` if not given.
    """
    allreduce_(tensor, None, name, priority, op=Average if is_average else Sum, session=session)


def byteps_declare_tensor(name: str, **settings: object) -> None:
    """Nothing to do: an array is declared when it is first sent, with its shape and dtype.

    Args:
        name: Of the array.
        settings: BytePS's settings of compression: refused.

    Raises:
        ValueError: Settings are given.
    """
    if settings:
        raise ValueError(
            f"{name}: {', '.join(sorted(settings))} are not there: pass compression=Compression.fp16 to "
            "DistributedTrainer or push_pull"
        )


def broadcast(tensor: Any, root_rank: int, name: str | None = None, priority: int = 0, **options: Any) -> Any:
    """Return the root's array as a new one; as in Horovod, the root's gradient is the average of all.

    Args:
        tensor: As for ``push_pull``, bool included; of the same shape and dtype on all ranks.
        root_rank: The rank whose values all get.
        name: Identifies the array across ranks.
        priority: Higher numbers are sent first.
        options: ``process_set`` and ``session``, as for ``push_pull``.
    """
    return _carried_out(_copy(tensor, root_rank, name, priority, **options), tensor)


def broadcast_(
    tensor: Any, root_rank: int, name: str | None = None, priority: int = 0, **options: Any
) -> Any:
    """Overwrite an array with the root's, and return it. See ``broadcast``; it has no gradient."""
    begin(_copy(tensor, root_rank, name, priority, **options), tensor)
    return tensor


def _reduction(
    tensor: Any,
    average: bool | None,
    name: str | None,
    priority: int,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet | None = None,
    op: ReduceOp | None = None,
    session: Session | None = None,
) -> Call:
    scales = (float(prescale_factor), float(postscale_factor))
    where: Any = {"priority": priority, "session": session, "process_set": process_set}
    return reduction_call(partial(check, tensor), average, op, name, scales=scales, **where)


def _copy(
    tensor: Any,
    root_rank: int,
    name: str | None,
    priority: int,
    process_set: ProcessSet | None = None,
    session: Session | None = None,
) -> Call:
    call = copy_call(partial(check, tensor), root_rank, name, session, process_set)
    return replace(call, priority=priority)


def _carried_out(call: Call, tensor: Any) -> Any:
    """The result of a round; gradients flow through it where MXNet records."""
    if mx.autograd.is_recording():
        return _Recorded(call)(tensor)
    return _result(call, tensor)


def _result(call: Call, tensor: Any) -> Any:
    result = tensor.copy()
    begin(call, result)
    return result


class _Recorded(mx.autograd.Function):
    """A round that MXNet's autograd knows the gradient of: see ``Call.of_gradient``."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self._call = call

    def forward(self, tensor: Any) -> Any:
        return _result(self._call, tensor)

    def backward(self, upstream: Any) -> Any:
        found = _result(self._call.of_gradient(), upstream)
        return found if self._call.sends else found * 0
