"""``push_pull_gradients``: a transformation for optax, which is not needed, that reduces gradients."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from byteps.adapters.gradients import gradient_reducer
from byteps.adapters.reductions import Average, sequence_number
from byteps.dtypes import ReduceOp
from byteps.jax.compression import Compression
from byteps.jax.gradients import GradientReducer
from byteps.jax.trees import arrays_of, leaks_explained, named_leaves
from byteps.session import Session


class GradientTransformation(NamedTuple):
    """What optax means by it, for ``optax.chain`` and the like.

    Attributes:
        init: Parameters to a state, here none.
        update: (updates, state, params) to (new updates, new state).
    """

    init: Callable[[Any], tuple[()]]
    update: Callable[..., tuple[Any, Any]]


class _Parameter:
    """Stands for a parameter, whose array is another one after each step."""

    def __init__(self, path: str) -> None:
        self.path = path


def push_pull_gradients(
    compression: Any = Compression.none,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    *,
    session: Session | None = None,
) -> GradientTransformation:
    """Reduce gradients over all ranks: ``optax.chain(push_pull_gradients(), optax.adam(1e-3))``.

    Make it once, not in every step: the names on the wire belong to it. Paths in their natural order, layer_9
    before layer_10, are taken for the order of the layers: the first is the most urgent.

    Args:
        compression: One of ``Compression``, or a class like them.
        op: ``Average`` or ``Sum``.
        gradient_predivide_factor: Divides before the sum and multiplies after it; only with ``Average``.
        session: The session of ``init()`` if not given.

    Raises:
        ValueError: An option cannot work.
        NotInitialized: ``init()`` has not been called.
    """
    options: dict[str, Any] = {"compression": compression, "op": op, "session": session}
    options["gradient_predivide_factor"] = gradient_predivide_factor
    reducer = gradient_reducer(GradientReducer, **options)
    number = sequence_number(reducer.rounds.session, "transformation")
    prefix = f"[{number}]" if number else ""  # other models may have the same paths
    known: dict[str, _Parameter] = {}

    def parameter(path: str) -> _Parameter:
        return known.setdefault(path, _Parameter(f"{prefix}{path}"))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        return _reduced(reducer, parameter, updates), state

    return GradientTransformation(lambda params: (), update)


def _reduced(reducer: GradientReducer, parameter: Callable[[str], _Parameter], updates: Any) -> Any:
    leaves, tree_of = named_leaves(updates)
    order = sorted(range(len(leaves)), key=lambda place: _natural(leaves[place][0]))
    leaves = [leaves[place] for place in order]
    with leaks_explained("gradients"):
        arrays = arrays_of(leaves, "gradient.", reducer.rounds.op)
        parameters = [parameter(path) for path, _ in leaves]
        results = dict(zip(order, reducer.reduce(arrays, parameters), strict=True))
    return tree_of([results[place] for place in range(len(leaves))])


def _natural(path: str) -> list[tuple[bool, int, str]]:
    """Sorts numbers within a path by their values."""
    parts = [part for part in re.split(r"(\d+)", path) if part]
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts]
