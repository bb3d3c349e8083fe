"""One round of one tensor, with the arguments of the user's call resolved: the same for all frameworks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import msgspec

from byteps.adapters.blocks import describe
from byteps.adapters.process_sets import Group, ProcessSet, group_of
from byteps.adapters.reductions import Average, Operator, check_gradient, checked_root, resolve_op, shown
from byteps.dtypes import DType, ReduceOp
from byteps.session import Session
from byteps.wire import TensorSpec

Check = Callable[[str, ReduceOp], object]
"""Raises if the tensor cannot be sent under this name with this operator."""


CallT = TypeVar("CallT", bound="Call")


@dataclass(frozen=True, slots=True)
class Call:
    """What to do with one tensor.

    Attributes:
        session: Where to send it.
        name: Its name on the wire.
        op: How to reduce it; ``COPY`` for a broadcast.
        scales: Factors for each contribution and for the result.
        priority: Higher numbers are sent first.
        root: The one rank that contributes, for a broadcast.
        ephemeral: Whether the name is used only once.
        members: The ranks that take part; all if empty.
        context: What the tensor is part of, in words.
    """

    session: Session
    name: str
    op: ReduceOp
    scales: tuple[float, float] = (1.0, 1.0)
    priority: int = 0
    root: int = -1
    ephemeral: bool = False
    members: tuple[int, ...] = ()
    context: str = ""

    @property
    def sends(self) -> bool:
        """Whether this rank contributes."""
        return self.root in (-1, self.session.rank)

    @property
    def group(self) -> Group:
        """The ranks that take part."""
        if self.members:
            return Group(self.session, self.members, self.session.process_sets.index(self.members))
        return group_of(None, self.session)

    def spec(self, dtype: DType, shape: Sequence[int]) -> TensorSpec:
        """What this rank declares. Raises ValueError if the dtype has no average."""
        spec = tensor_spec(self.name, dtype, shape, self.op, self.scales, self.root, self.ephemeral)
        return msgspec.structs.replace(spec, members=self.members, context=self.context)

    def of_gradient(self: CallT) -> CallT:
        """The round of the gradient, under a name of its own.

        The gradient of a sum or average is the same of the gradients, with the same factors. That of a
        broadcast is, on the root, the average of all ranks' gradients; elsewhere it is zero.

        Raises:
            ValueError: The operator has no gradient.
        """
        if self.op is not ReduceOp.COPY:
            check_gradient(self.name, self.op)
        op = Average if self.op is ReduceOp.COPY else self.op
        return replace(self, name=f"{self.name}.gradient", op=op, root=-1)


def fields_of(call: Call) -> dict[str, Any]:
    """The attributes by name, to make a call of another class."""
    return {field.name: getattr(call, field.name) for field in fields(call)}


def tensor_spec(
    name: str,
    dtype: DType,
    shape: Sequence[int],
    op: ReduceOp,
    scales: tuple[float, float] = (1.0, 1.0),
    root: int = -1,
    ephemeral: bool = False,
) -> TensorSpec:
    """What this rank declares for a tensor; arguments are those of ``Call``.

    Raises:
        ValueError: The dtype has no average.
    """
    if dtype is DType.BOOL and op is ReduceOp.AVERAGE:
        raise ValueError(f"{name}: booleans have no average. Pass op=Sum (any), op=Min (all) or op=Max (any)")
    return TensorSpec(name, dtype, tuple(shape), op, *scales, root=root, ephemeral=ephemeral)


def reduction_call(
    check: Check,
    average: bool | None,
    op: Operator | None,
    name: str | None,
    *,
    priority: int | None = None,
    scales: tuple[float, float] = (1.0, 1.0),
    session: Session | None = None,
    process_set: ProcessSet | None = None,
) -> Call:
    """Resolve the arguments of a push_pull. A wrong call takes no number from those of the unnamed tensors.

    Raises:
        ValueError, TypeError: An argument is wrong, or ``check`` says so.
        NotInitialized: There is no session.
    """
    resolved = resolve_op(average, op)
    check(shown("push_pull", name), resolved)
    if priority is not None and not isinstance(priority, int):
        raise TypeError(f"priority= must be an integer or None, not {priority!r}")
    group = group_of(process_set, session)
    full_name, ephemeral = group.name("push_pull", name)
    return Call(
        group.session,
        full_name,
        resolved,
        scales,
        priority or 0,
        ephemeral=ephemeral,
        members=group.members,
    )


def copy_call(
    check: Check,
    root_rank: int,
    name: str | None,
    session: Session | None = None,
    process_set: ProcessSet | None = None,
) -> Call:
    """Resolve the arguments of a broadcast. Errors are those of ``reduction_call``."""
    check(shown("broadcast", name), ReduceOp.COPY)
    group = group_of(process_set, session)
    root = checked_root(group.session, root_rank)
    if root not in group.ranks:
        raise ValueError(f"root_rank={root} is not in the process set of ranks {list(group.ranks)}")
    full_name, ephemeral = group.name("broadcast", name)
    return Call(
        group.session, full_name, ReduceOp.COPY, root=root, ephemeral=ephemeral, members=group.members
    )


def calls_together(
    group: Group,
    named: tuple[str, bool],
    op: ReduceOp,
    scales: tuple[float, float],
    tensors: Sequence[tuple[DType, Sequence[int]]],
) -> list[Call]:
    """One round for each tensor of a group that is reduced as a whole or not at all: see ``later.begin_all``.

    Args:
        group: The ranks.
        named: Name of the group on the wire, and whether it is used only once.
        op, scales: As for ``Call``.
        tensors: Dtype and shape of each.
    """
    context = f"of a group of {len(tensors)}: {describe(tensors)}"
    call = Call(
        group.session,
        named[0],
        op,
        scales,
        ephemeral=named[1],
        members=group.members,
        context=context,
    )
    return [replace(call, name=f"{named[0]}.{position}") for position in range(len(tensors))]
