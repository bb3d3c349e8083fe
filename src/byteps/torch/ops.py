"""``push_pull``, in place and out of place, at once and with a handle to wait for.

A name identifies a tensor across ranks and stands for one shape, dtype and op as long as the job runs. Calls
without a name are matched by their order, which must then be the same on all ranks. ``session=`` is only for
processes that have more than the one session of ``init()``.

All calls raise ``TypeError`` or ``ValueError`` for arguments that cannot work (no tensor; sparse, complex,
average of booleans; a name still in flight), ``NotInitialized`` before ``init()``, and ``DeclarationError``
when ranks differ in a tensor's shape, dtype or op. Waiting raises ``BytePSError`` when the job fails.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor

from byteps.adapters.calls import fields_of, reduction_call
from byteps.adapters.current import current
from byteps.adapters.reductions import resolve_op
from byteps.adapters.signatures import takes
from byteps.dtypes import ReduceOp
from byteps.session import Session
from byteps.torch.compression import Compression, Compressor
from byteps.torch.differentiable import differentiable
from byteps.torch.reduction import Reduction
from byteps.torch.tensors import spec_of
from byteps.torch.transfers import TensorHandle


def _push_pull_arguments(
    tensor: Tensor,
    average: bool = True,
    name: str | None = None,
    priority: int | None = None,
    *,
    compression: type[Compressor] = Compression.none,
    version: int = 0,
    session: Session | None = None,
) -> tuple[Reduction, Tensor]:
    call = reduction_call(partial(spec_of, tensor), average, None, name, priority=priority, session=session)
    return Reduction(**fields_of(call), compression=compression), tensor


@takes(_push_pull_arguments)
def push_pull(reduction: Reduction, tensor: Tensor) -> Tensor:
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
    return differentiable(tensor, reduction)


@takes(_push_pull_arguments)
def push_pull_async(reduction: Reduction, tensor: Tensor) -> TensorHandle:
    """Start ``push_pull``; ``synchronize`` returns the new tensor. ``tensor`` must not change until then."""
    return reduction.out_of_place(tensor)


@takes(_push_pull_arguments)
def push_pull_inplace(reduction: Reduction, tensor: Tensor) -> Tensor:
    """Reduce a tensor over all ranks in place and return it."""
    return reduction.in_place(tensor).synchronize()


@takes(_push_pull_arguments)
def push_pull_async_inplace(reduction: Reduction, tensor: Tensor) -> TensorHandle:
    """Start ``push_pull_inplace``. The tensor must be left alone until ``synchronize``, which returns it."""
    return reduction.in_place(tensor)


def declare(
    name: str,
    tensor: Tensor | None = None,
    average: bool | None = None,
    op: ReduceOp | None = None,
    *,
    session: Session | None = None,
) -> None:
    """Announce a tensor that ``push_pull(..., name=name)`` will send, so that its first round need not.

    Args:
        name: The name that calls will use.
        tensor: One of the shape and dtype that calls will send. Without it only the arguments are checked:
            unlike in BytePS, the order of declarations means nothing.
        average: As calls will say.
        op: As calls will say.
        session: The session of ``init()`` if not given.
    """
    session = current() if session is None else session
    if not isinstance(name, str):
        raise TypeError(f"name= must be a string, not {name!r}")
    if tensor is not None:
        session.declare([spec_of(tensor, f"push_pull.{name}", resolve_op(average, op))])
