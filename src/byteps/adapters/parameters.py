"""Checks on ``named_parameters``, before anything is sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

ParameterT = TypeVar("ParameterT")


def named_parameters_of(
    groups: Sequence[Sequence[ParameterT]], named: Iterable[tuple[str, ParameterT]] | None
) -> list[tuple[str, ParameterT]]:
    """Name every parameter of an optimizer.

    Args:
        groups: The optimizer's parameters, one sequence for each parameter group.
        named: What the user gave as ``named_parameters``, in forward order; any iterable. It may hold more
            parameters than the optimizer. Without it, names are made from the positions in the groups.

    Returns:
        (name, parameter) for each parameter of the optimizer, in the order of ``named``.

    Raises:
        ValueError: ``named`` holds something else than (str, parameter) tuples, repeats a name or a
            parameter, or lacks a parameter of the optimizer.
    """
    if named is None:
        return [
            (f"noname.{number}.{index}", parameter)
            for number, group in enumerate(groups)
            for index, parameter in enumerate(group)
        ]
    pairs = list(named)
    _check_pairs(pairs)
    names = {id(parameter): name for name, parameter in pairs}
    _check_complete(groups, names)
    wanted = {id(parameter) for group in groups for parameter in group}
    return [(name, parameter) for name, parameter in pairs if id(parameter) in wanted]


def _check_pairs(pairs: Sequence[Any]) -> None:
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], str):
            raise ValueError(
                "named_parameters should be a sequence of tuples (name, parameter), usually produced by "
                f"model.named_parameters(); it holds {type(pair).__name__} {str(pair)[:60]!r}"
            )
    repeated = sorted(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
    if repeated:
        raise ValueError(
            f"Parameter names in named_parameters must be unique. Found duplicates: {', '.join(repeated)}"
        )
    first: dict[int, str] = {}
    for name, parameter in pairs:
        other = first.setdefault(id(parameter), name)
        if other != name:
            raise ValueError(
                f"named_parameters holds one parameter twice, as {other!r} and as {name!r}: give each once"
            )


def _check_complete(groups: Sequence[Sequence[ParameterT]], names: dict[int, str]) -> None:
    missing = [
        f"parameter {index} of group {number}"
        for number, group in enumerate(groups)
        for index, parameter in enumerate(group)
        if id(parameter) not in names
    ]
    if missing:
        raise ValueError(
            "named_parameters was specified, but one or more model parameters were not named: "
            f"{', '.join(missing[:5])}{', ...' if missing[5:] else ''}. "
            "Pass the named_parameters() of every model whose parameters the optimizer holds."
        )
