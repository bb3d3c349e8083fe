"""How calls say what to do with a tensor: operators, names, roots. Horovod's and BytePS's rules."""

from __future__ import annotations

import enum
import operator
from typing import Final, TypeAlias

from byteps.dtypes import ReduceOp
from byteps.session import Session


class Combination(enum.IntEnum):
    """Operators that are made of several rounds. Numbered apart from ``ReduceOp``."""

    ADASUM = 100


Average: Final = ReduceOp.AVERAGE
Sum: Final = ReduceOp.SUM
Min: Final = ReduceOp.MIN
Max: Final = ReduceOp.MAX
Product: Final = ReduceOp.PRODUCT
Adasum: Final = Combination.ADASUM
REDUCTIONS: Final = (Average, Sum, Min, Max, Product)
Operator: TypeAlias = ReduceOp | Combination
"""What ``op=`` may be where Adasum is among the choices."""


def resolve_op(average: bool | None, op: Operator | None) -> ReduceOp:
    """The operator that ``average=`` and ``op=`` mean together; with neither it is ``Average``.

    Raises:
        ValueError: Both are given, or ``op`` is not one of ``REDUCTIONS``.
        TypeError: ``average`` is not a bool.
    """
    if average is not None and op is not None:
        raise ValueError("average= and op= say the same thing: give only op=")
    if op is None:
        if average is not None and not isinstance(average, bool):
            raise TypeError(f"average= must be True or False, not {average!r}")
        return Sum if average is False else Average
    if op not in REDUCTIONS:
        raise ValueError(f"op= must be Average, Sum, Min, Max or Product, not {op!r}")
    return ReduceOp(op)


def check_gradient(name: str, op: ReduceOp) -> None:
    """Raise ValueError if a reduction by this operator has no gradient."""
    if op not in (Average, Sum):
        raise ValueError(
            f"{name}: {op.name.title()} has no gradient here. Stop it before the call: detach(), "
            "tf.stop_gradient or jax.lax.stop_gradient"
        )


def shown(kind: str, name: str | None) -> str:
    """What errors call a tensor before it has its name on the wire: the user's name, or the kind of call."""
    return kind if name is None else repr(name)


def wire_name(session: Session, kind: str, name: str | None) -> tuple[str, bool]:
    """The name of a tensor on the wire, and whether it is used only once.

    The kind of call is part of it, so that one user's name may serve for a push_pull and a broadcast.
    Tensors without a name are numbered in the order of the calls, which must be the same on all ranks.

    Raises:
        TypeError: ``name`` is not a string.
    """
    if name is None:
        return session.next_name(kind), True
    if not isinstance(name, str):
        raise TypeError(f"name= must be a string or None, not {name!r}")
    return f"{kind}.{name}", False


def checked_root(session: Session, root_rank: int) -> int:
    """``root_rank`` as an int.

    Raises:
        ValueError: The job has no such rank.
        TypeError: It is not an integer.
    """
    if isinstance(root_rank, bool):
        raise TypeError("root_rank= must be an integer, not a bool")
    root = operator.index(root_rank)
    if not 0 <= root < session.size:
        raise ValueError(f"root_rank={root} is not a rank of this job: they are 0 to {session.size - 1}")
    return root


def sequence_number(session: Session, kind: str) -> int:
    """How many times this was called before for this kind, on this session; the same on all ranks."""
    return int(session.next_name(kind).rpartition(".")[2])
