"""``broadcast``: one rank's tensor on all ranks. Names and errors are as in ``ops``."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from byteps.adapters.calls import Call, copy_call, fields_of
from byteps.adapters.handles import ResultHandle
from byteps.adapters.process_sets import ProcessSet
from byteps.adapters.signatures import takes
from byteps.dtypes import ReduceOp
from byteps.session import Session
from byteps.torch.differentiable import differentiable
from byteps.torch.reduction import Reduction
from byteps.torch.sending import start
from byteps.torch.tensors import element_type, spec_of
from byteps.torch.transfers import TensorHandle
from byteps.wire import TensorSpec


class Copy(Call):
    """A broadcast with its arguments resolved."""

    __slots__ = ()

    def declaration(self, tensor: Tensor) -> TensorSpec:
        """What to declare for a tensor."""
        return self.spec(element_type(tensor, self.name), tensor.shape)

    def in_place(self, tensor: Tensor) -> TensorHandle:
        """Send the tensor from the root, overwrite it elsewhere."""
        source, target = (tensor, None) if self.sends else (None, tensor)
        pending = start(self.session, self.declaration(tensor), source, target)
        return ResultHandle(self.name, pending, lambda: tensor)

    def out_of_place(self, tensor: Tensor) -> TensorHandle:
        """The same into a new tensor."""
        with torch.no_grad():
            if self.sends:
                output = tensor.clone(memory_format=torch.contiguous_format)
            else:
                output = torch.empty_like(tensor, memory_format=torch.contiguous_format)
        return self.in_place(output)

    def gradient(self, gradient: Tensor) -> Tensor:
        """The root's gradient is the average of all ranks' gradients; elsewhere it is zero."""
        name = f"{self.name}.gradient"
        average = Reduction(
            self.session, name, ReduceOp.AVERAGE, ephemeral=self.ephemeral, members=self.members
        )
        averaged = differentiable(gradient, average)
        return averaged if self.sends else torch.zeros_like(averaged)


def copy_of(
    tensor: Tensor,
    root_rank: int,
    name: str | None,
    session: Session | None,
    process_set: ProcessSet | None = None,
) -> Copy:
    """Resolve a call's arguments. A wrong call takes no number from those of the unnamed tensors."""
    return Copy(**fields_of(copy_call(partial(spec_of, tensor), root_rank, name, session, process_set)))


def _arguments(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet | None = None,
    *,
    session: Session | None = None,
) -> tuple[Copy, Tensor]:
    return copy_of(tensor, root_rank, name, session, process_set), tensor


@takes(_arguments)
def broadcast(copy: Copy, tensor: Tensor) -> Tensor:
    """Return the root's tensor as a new tensor that gradients flow through.

    As in Horovod, the root's gradient is the average of all ranks' gradients; elsewhere it is zero.

    Args:
        tensor: As for ``push_pull``, bool included; the same shape and dtype on all ranks.
        root_rank: The rank whose values all get.
        name: Identifies the tensor across ranks; by the order of calls if not given.
        process_set: The ranks that take part; all if not given. ``root_rank`` is a global rank all the same.
        session: The session of ``init()`` if not given.
    """
    return differentiable(tensor, copy)


@takes(_arguments)
def broadcast_async(copy: Copy, tensor: Tensor) -> TensorHandle:
    """Start ``broadcast``; ``synchronize`` returns the new tensor. ``tensor`` must not change until then."""
    return copy.out_of_place(tensor)


@takes(_arguments)
def broadcast_(copy: Copy, tensor: Tensor) -> Tensor:
    """Overwrite a tensor with the root's and return it."""
    return copy.in_place(tensor).synchronize()


@takes(_arguments)
def broadcast_async_(copy: Copy, tensor: Tensor) -> TensorHandle:
    """Start ``broadcast_``. The tensor must be left alone until ``synchronize``, which returns it."""
    return copy.in_place(tensor)
