"""What distributed optimizers and gradient tapes know about their gradients, whatever the framework."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from byteps.adapters.calls import Call
from byteps.adapters.compression import NoneCompressor
from byteps.adapters.current import current, kept
from byteps.adapters.process_sets import Group, ProcessSet, group_of_member
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
        group: The ranks that take part; None: this rank goes on by itself.
    """

    session: Session
    op: ReduceOp
    scales: tuple[float, float] = (1.0, 1.0)
    names: VariableNames = field(default_factory=VariableNames)
    group: Group | None = None

    @property
    def sends(self) -> bool:
        """Whether there is anyone to send to; else gradients are what they are."""
        return self.group is not None and (self.session.size > 1 or self.session.config.force_distributed)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Those that take part."""
        return (self.session.rank,) if self.group is None else self.group.ranks

    def calls(self, variables: Sequence[tuple[object, str]]) -> list[Call]:
        """One round for each (variable, its own name), in forward order: the first is the most urgent."""
        group = self.group
        assert group is not None
        names = [group.name("gradient", self.names.of(variable, label))[0] for variable, label in variables]
        return [
            Call(self.session, name, self.op, self.scales, priority=-place, members=group.members)
            for place, name in enumerate(names)
        ]


ReducerT = TypeVar("ReducerT", bound="GradientReducer")

_MEANINGLESS: Final = frozenset(
    {
        "average_aggregated_gradients",
        "device_dense",
        "device_sparse",
        "use_locking",
    }
)


@dataclass(frozen=True)
class GradientReducer:
    """Reduces the gradients of an optimizer or tape. Adapters derive theirs from it.

    Attributes:
        rounds: Names, priorities and factors.
        compression: Applied to dense gradients before sending and after receiving.
        sparse_as_dense: Whether row-sparse gradients are made dense.
        scale_local_gradients: Whether gradients that stay local are divided by the number of ranks.
        local: Variables whose gradients stay local.
    """

    rounds: GradientRounds
    compression: Any
    sparse_as_dense: bool = False
    scale_local_gradients: bool = True
    local: list[Any] = field(default_factory=list)

    def keep_local(self, variable: Any) -> None:
        """The gradient of this variable, of a part of the model that ranks do not share, stays local."""
        self.local.append(variable)

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The gradients over all ranks; all are in flight together, the first variable's is the most urgent.

        Args:
            gradients: One for each variable; None stays None, and must be None on all ranks.
            variables: In forward order.

        Raises:
            BytePSError: A round failed.
        """
        if not self.rounds.sends:
            return list(gradients)
        calls = self.rounds.calls(
            [(variable, self.label(variable, n)) for n, variable in enumerate(variables)]
        )
        own = {id(variable) for variable in self.local}
        mine = [position for position, variable in enumerate(variables) if id(variable) in own]
        used = [n for n, gradient in enumerate(gradients) if gradient is not None and n not in mine]
        given = [self.prepared(gradients[position]) for position in used]
        dense = [not self.is_sparse(gradient) for gradient in given]
        sent = [
            self.compression.compress(gradient) if plain else (gradient, None)
            for gradient, plain in zip(given, dense, strict=True)
        ]
        results = self.carry_out([calls[position] for position in used], [wire for wire, _ in sent])
        found = list(gradients)
        for position in mine if self.scale_local_gradients else ():
            if found[position] is not None:
                found[position] = self.scaled(found[position], 1 / len(self.rounds.ranks))
        for position, plain, (_, context), result in zip(used, dense, sent, results, strict=True):
            found[position] = self.compression.decompress(result, context) if plain else result
        return found

    def label(self, variable: Any, position: int) -> str:
        """What a variable calls itself; Keras's path unless an adapter knows better."""
        return str(variable.path)

    def scaled(self, gradient: Any, factor: float) -> Any:
        """The gradient times a factor."""
        return gradient * factor

    def prepared(self, gradient: Any) -> Any:
        """The gradient as it can be sent."""
        return gradient

    def is_sparse(self, gradient: Any) -> bool:
        """Whether a gradient is sent row by row."""
        return False

    def carry_out(self, calls: Sequence[Call], gradients: Sequence[Any]) -> list[Any]:
        """The rounds' results; all must be in flight before the first is waited for."""
        raise NotImplementedError


def gradient_reducer(
    kind: type[ReducerT],
    *,
    compression: Any = NoneCompressor,
    sparse_as_dense: bool = False,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    backward_passes_per_step: int = 1,
    num_groups: int = 0,
    groups: object = None,
    scale_local_gradients: bool = True,
    process_set: ProcessSet | None = None,
    session: Session | None = None,
    **foreign: object,
) -> ReducerT:
    """Resolve the options of an optimizer or tape that is given lists of gradients.

    Args:
        kind: The adapter's reducer.
        compression: One of the adapter's ``Compression``, or a class like them.
        sparse_as_dense: Make row-sparse gradients dense; else their rows are joined.
        op: ``Average`` or ``Sum``.
        gradient_predivide_factor: Divides before the sum and multiplies after it; only with ``Average``.
        backward_passes_per_step: Must be 1: Keras's optimizers add up gradients themselves.
        num_groups, groups: Accepted for Horovod scripts; servers reduce each gradient by itself.
        scale_local_gradients: Divide gradients that stay local by the number of ranks: see ``keep_local``.
        process_set: The ranks whose gradients are reduced; all if not given. Other ranks step on their own.
        session: The session of ``init()`` if not given.
        foreign: ``device_dense``, ``device_sparse``, ``average_aggregated_gradients``,
            ``use_locking``: accepted for Horovod scripts; mean nothing.

    Raises:
        TypeError: There is no such option.
        ValueError: An option cannot work.
        NotInitialized: ``init()`` has not been called.
    """
    unknown = sorted(set(foreign) - _MEANINGLESS)
    if unknown:
        raise TypeError(
            f"unexpected options {', '.join(unknown)}: see byteps.adapters.gradients.gradient_reducer"
        )
    if checked_passes(backward_passes_per_step) > 1:
        raise ValueError(
            "backward_passes_per_step is not supported here: make the optimizer with "
            "gradient_accumulation_steps=, as keras.optimizers do it themselves"
        )
    check_foreign(num_groups, groups, process_set)
    scales = gradient_scales(op, gradient_predivide_factor)
    names = kept(VariableNames) if session is None else VariableNames()
    session = current() if session is None else session
    rounds = GradientRounds(session, op, scales, names, group_of_member(process_set, session))
    return kind(rounds, compression, sparse_as_dense, scale_local_gradients)


def variables_of(layers: Any) -> list[Any]:
    """The trainable variables of one Keras layer or of several; none if ``layers`` is None.

    Raises:
        ValueError: A layer has none yet.
    """
    given = [] if layers is None else layers if isinstance(layers, list | tuple) else [layers]
    for layer in given:
        if not getattr(layer, "built", True):
            raise ValueError(
                f"local_layers: {layer.name} has no variables yet: build the model first, by "
                "model.build(input_shape) or by calling it on a batch"
            )
    return [variable for layer in given for variable in layer.trainable_variables]


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
