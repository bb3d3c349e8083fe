"""Arguments that many calls take and few scripts give, by keyword only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from byteps.adapters.process_sets import Group, ProcessSet, group_of
from byteps.dtypes import ReduceOp
from byteps.session import Session

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Among(TypedDict, total=False):
    """Among whom a tensor is exchanged.

    Attributes:
        process_set: The ranks that take part; all if not given.
        session: The session of ``init()`` if not given.
        ignore_name_scope: Accepted for Horovod scripts; means nothing.
    """

    process_set: ProcessSet | None
    session: Session | None
    ignore_name_scope: bool


class Scaling(Among, total=False):
    """How a reduction scales, and among whom.

    Attributes:
        prescale_factor: Applied to each contribution before the reduction.
        postscale_factor: Applied to the result.
    """

    prescale_factor: float
    postscale_factor: float


@dataclass(frozen=True)
class Grouped:
    """A reduction of several tensors together, with its arguments resolved. Adapters derive theirs from it.

    Attributes:
        group: The ranks.
        named: Name on the wire, and whether it is used only once.
        op: How to reduce.
        scales: Factors for each contribution and for the result.
    """

    group: Group
    named: tuple[str, bool]
    op: ReduceOp
    scales: tuple[float, float]


def check_several(kind: str, tensors: Sequence[object]) -> None:
    """Raise ValueError if a call that takes several tensors together is given none."""
    if not tensors:
        raise ValueError(f"{kind} needs at least one tensor")


def group_among(**given: Unpack[Among]) -> Group:
    """The ranks that keyword arguments mean.

    Raises:
        TypeError: An argument of another name is given.
        ValueError: The process set is not registered, or does not include this rank.
    """
    return scaled(**given)[0]


def scaled(**given: Unpack[Scaling]) -> tuple[Group, tuple[float, float]]:
    """The ranks and the factors that keyword arguments mean.

    Raises:
        TypeError: An argument of another name is given.
        ValueError: The process set is not registered, or does not include this rank.
    """
    unknown = set(given) - set(Scaling.__annotations__)
    if unknown:
        raise TypeError(f"unexpected keyword arguments: {', '.join(sorted(unknown))}")
    factors = float(given.get("prescale_factor", 1.0)), float(given.get("postscale_factor", 1.0))
    return group_of(given.get("process_set"), given.get("session")), factors
