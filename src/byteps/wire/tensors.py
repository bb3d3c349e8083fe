"""Messages about tensors: what ranks say of them, the coordinator's answers, and what servers must know."""

from __future__ import annotations

import math
from typing import Annotated

import msgspec
from msgspec import Meta

from byteps.dtypes import ITEM_BYTES, DType, ReduceOp
from byteps.wire.fields import Count, Number, OptionalNumber, TensorName


class TensorSpec(msgspec.Struct, frozen=True, array_like=True):
    """What a rank says about a tensor when it declares it; all ranks must say the same.

    Attributes:
        name: What identifies the tensor across ranks.
        dtype: A ``DType``.
        shape: Elements along each dimension; ``()`` is a scalar.
        op: A ``ReduceOp``.
        prescale: Factor applied to each contribution before the reduction.
        postscale: Factor applied to the result before it is rounded to ``dtype``.
        root: The one rank that contributes, for ``ReduceOp.COPY``; -1 otherwise.
        ephemeral: The name is used once; the tensor is forgotten when every rank has sent ``Finished``.
        members: The ranks that take part, in order; empty: all. Averages are over these.
        context: What it is a part of, in words: tensors of one call match together or not at all.
    """

    name: TensorName
    dtype: Annotated[int, Meta(ge=0, lt=len(DType))]
    shape: Annotated[tuple[Count, ...], Meta(max_length=64)]
    op: Annotated[int, Meta(ge=0, lt=len(ReduceOp))]
    prescale: float = 1.0
    postscale: float = 1.0
    root: OptionalNumber = -1
    ephemeral: bool = False
    members: Annotated[tuple[Number, ...], Meta(max_length=2**16)] = ()
    context: Annotated[str, Meta(max_length=1024)] = ""

    @property
    def length(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]

    def describe(self) -> str:
        """Dtype, shape and operator as error messages show them: ``float32[3, 4] Average``."""
        text = f"{DType(self.dtype).name.lower()}{list(self.shape)} {ReduceOp(self.op).name.title()}"
        if self.root >= 0:
            text += f" from root {self.root}"
        if self.prescale != 1.0:
            text += f" prescale {self.prescale:g}"
        if self.postscale != 1.0:
            text += f" postscale {self.postscale:g}"
        if self.members:
            text += f" among ranks {', '.join(map(str, self.members))}"
        if self.context:
            text += f" ({self.context})"
        return text

    def objection(self, size: int) -> str:
        """Why no job of ``size`` workers can use such a tensor; empty if it can."""
        if self.op == ReduceOp.COPY and not 0 <= self.root < size:
            return f"needs a root rank from 0 to {size - 1}, not {self.root}"
        if self.members and (self.members[-1] >= size or list(self.members) != sorted(set(self.members))):
            return f"needs members from 0 to {size - 1}, each once and in order, not {list(self.members)}"
        if self.op == ReduceOp.COPY and self.members and self.root not in self.members:
            return f"cannot come from root {self.root}, which is not one of its ranks"
        if self.op == ReduceOp.AVERAGE and self.dtype == DType.BOOL:
            return "has no average; use another op or dtype"
        if not (math.isfinite(self.prescale) and math.isfinite(self.postscale)):
            return "needs finite scale factors"
        return ""


class Part(msgspec.Struct, frozen=True, array_like=True):
    """A partition's place: which server sums it, over which lane it travels, and its size in bytes."""

    server: Number
    lane: Number
    nbytes: Count


class Declare(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Worker -> coordinator: tensors that this rank will use, and how often it declared each name before."""

    request: Count
    tensors: list[TensorSpec]
    generations: list[Count]


class Placement(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A declared tensor's number and the partitions it is cut into, in order."""

    id: Count
    generation: Count
    parts: list[Part]


class Refusal(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Why a declared tensor cannot be used."""

    name: str
    message: str


class Declared(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Coordinator -> worker: the answer to ``Declare``, one entry per tensor in its order."""

    request: Count
    tensors: list[Placement | Refusal]


class Refuse(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Worker -> coordinator: no round after ``after``, whose result this rank has, can match on all ranks."""

    name: TensorName
    generation: Count
    message: str
    after: Count = 0


class Retract(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Coordinator -> workers that have declared a tensor: no round after ``after`` can be, and why."""

    id: Count
    name: str
    message: str
    after: Count = 0


class Finished(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Worker -> coordinator: this rank is done with ephemeral tensors, or with what others stand for now."""

    ids: list[Count]


class InstalledTensor(msgspec.Struct, frozen=True, array_like=True):
    """What a server must know of a tensor; ``parts`` are its own partitions as (index, lane, bytes).

    The name is for messages only; ``members`` are the ranks that take part, none meaning all.
    """

    id: Count
    dtype: Number
    op: Number
    prescale: float
    postscale: float
    parts: list[tuple[Number, Number, Count]]
    name: str = ""
    members: list[Number] = []


class Install(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Coordinator -> server: tensors to expect from now on, and numbers of tensors to forget."""

    request: Count
    tensors: list[InstalledTensor]
    retire: list[Count]


class Installed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Server -> coordinator: the answer to ``Install``."""

    request: Count
