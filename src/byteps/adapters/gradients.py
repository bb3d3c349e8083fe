"""What distributed optimizers and gradient tapes know about their gradients, whatever the framework."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from byteps.adapters.calls import Call
from byteps.adapters.current import current, kept
from byteps.adapters.process_sets import ProcessSet
from byteps.adapters.reductions import Average, Operator, Sum, sequence_number
from byteps.dtypes import ReduceOp
from byteps.session import Session


class VariableNames:
    """Names of variables on the wire, for frameworks whose variables know a name that need not be unique.

    The second variable of a name gets a number, in the order in which they are first seen: the same on all
    ranks if they run the same program.
    """

    def __init__(self, session: Session | None = None) -> None:
        self._known: dict[str, list[weakref.ref[Any]]] = {}

    def of(self, variable: object, label: str) -> str:
        """The name of a variable that calls itself ``label``."""
        known = self._known.setdefault(label, [])
        seen = [number for number, reference in enumerate(known) if reference() is variable]
        number = seen[0] if seen else len(known)
        if not seen:
            known.append(weakref.ref(variable))
        return f"{label}#{number}" if number else label


@dataclass(frozen=True)
class GradientRounds:
    """How the gradients of some variables are reduced.

    Attributes:
        session: Where to send them.
        op: ``Average`` or ``Sum``.
        scales: Factors for each contribution and for the result.
        names: Tells variables apart.
    """

    session: Session
    op: ReduceOp
    scales: tuple[float, float] = (1.0, 1.0)
    names: VariableNames = field(default_factory=VariableNames)

    @property
    def sends(self) -> bool:
        """Whether there is anyone to send to; else gradients are what they are."""
        return self.session.size > 1 or self.session.config.force_distributed

    def calls(self, variables: Sequence[tuple[object, str]]) -> list[Call]:
        """One round for each (variable, its own name), in forward order: the first is the most urgent."""
        names = [self.names.of(variable, label) for variable, label in variables]
        return [
            Call(self.session, f"gradient.{name}", self.op, self.scales, priority=-position)
            for position, name in enumerate(names)
        ]


def gradient_rounds(
    op: ReduceOp = Average, predivide: float = 1.0, session: Session | None = None
) -> GradientRounds:
    """Resolve what an optimizer or tape was given.

    Raises:
        ValueError: ``op`` is neither Average nor Sum, or ``predivide`` cannot work.
        NotInitialized: There is no session.
    """
    scales = gradient_scales(op, predivide)
    names = kept(VariableNames) if session is None else VariableNames()
    return GradientRounds(current() if session is None else session, op, scales, names)


def gradient_prefix(session: Session, process_set: int = 0) -> str:
    """Begins the names of one model's gradients: models may have parameters of the same name."""
    kind = f"set{process_set}.gradient" if process_set else "gradient"
    number = sequence_number(session, kind)
    return f"{kind}[{number}]" if number else kind


def checked_passes(passes: Any) -> int:
    """``backward_passes_per_step``. Raises ValueError unless it is a positive integer."""
    if not isinstance(passes, int) or passes < 1:
        raise ValueError(f"backward_passes_per_step must be a positive integer, not {passes!r}")
    return int(passes)


def gradient_scales(op: Operator, predivide: float) -> tuple[float, float]:
    """Factors for each contribution and for the result, from ``gradient_predivide_factor``.

    Raises:
        ValueError: ``op`` is neither Average nor Sum, or ``predivide`` cannot work.
    """
    if op not in (Average, Sum):
        raise ValueError(f"op= must be Average or Sum for gradients, not {op!r}")
    if predivide != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if not predivide > 0:
        raise ValueError(f"gradient_predivide_factor must be positive, not {predivide!r}")
    return 1.0 / predivide, float(predivide)


def check_foreign(num_groups: int, groups: object, process_set: object) -> None:
    """Refuse what is no process set, and warn of arguments of Horovod's that have no meaning here."""
    if process_set is not None and not isinstance(process_set, ProcessSet):
        raise ValueError(f"process_set= must be a ProcessSet, not {process_set!r}")
    if num_groups or groups is not None:
        warnings.warn(
            "num_groups= and groups= have no effect: servers reduce each gradient by itself", stacklevel=3
        )
