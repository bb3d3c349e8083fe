"""Adapters: nothing is written in two of them, and what a new one needs stays small."""

from __future__ import annotations

import ast
from collections.abc import Mapping

import pytest

from .duplicates import find_pairs
from .test_layers import FRAMEWORK_ADAPTERS, area, edges, modules
from .tree import Source, module_name, python_sources, report

EXPORTS = "src/byteps/adapters/exports.py"
LINES = 600
# The packages of features beside each adapter proper, which is what lies in no package. Each may import from
# the adapter proper and from those before it.
FEATURES: Mapping[str, tuple[str, ...]] = {
    "jax": (),
    "keras": (),
    "mxnet": ("training",),
    "tensorflow": ("collectives", "functions", "tape", "cross_barrier"),
    "torch": (
        "reductions",
        "collectives",
        "gradients",
        "optimizer",
        "partial_steps",
        "dependency_proxy",
        "cross_barrier",
        "functions",
        "parallel",
        "distributed",
        "node_sums",
        "launching",
    ),
}
PROPER = "the adapter proper"


def _adapters() -> dict[str, list[Source]]:
    found: dict[str, list[Source]] = {name: [] for name in FRAMEWORK_ADAPTERS}
    for source in python_sources("src"):
        if area(module_name(source)) in found:
            found[area(module_name(source))].append(source)
    return found


def _listed(source: Source) -> set[str]:
    """The names that a module's ``__all__`` spells out."""
    values = [
        node.value
        for node in source.tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    strings = [node for value in values for node in ast.walk(value) if isinstance(node, ast.Constant)]
    return {str(node.value) for node in strings}


def test_nothing_is_written_in_two_adapters() -> None:
    owners = {source.name: name for name, sources in _adapters().items() for source in sources}
    pairs = find_pairs([source for sources in _adapters().values() for source in sources])
    shared = [
        str(pair)
        for pair in pairs
        if owners[pair.first.rpartition(":")[0]] != owners[pair.second.rpartition(":")[0]]
    ]
    assert not shared, report("Code in two adapters", shared, "Give it one home in byteps.adapters.")


def test_what_all_adapters_export_is_listed_once() -> None:
    (exports,) = [source for source in python_sources("src") if source.name == EXPORTS]
    common = _listed(exports)
    again = [
        f"{source.name}: {', '.join(sorted(common & _listed(source)))}"
        for sources in _adapters().values()
        for source in sources
        if common & _listed(source)
    ]
    assert common
    assert not again, report("Names of adapters.exports listed again", again, "Add exports.__all__ instead.")


def _part(module: str) -> str:
    """The package within its adapter that a module lies in, such as ``gradients``."""
    adapter = area(module)
    parts = module.split(".")
    return parts[2] if parts[1] == adapter and len(parts) > 3 else PROPER


def _lists_names(statement: ast.stmt) -> bool:
    """Whether a statement imports, adds to ``__all__`` or is a docstring."""
    if isinstance(statement, ast.Assign | ast.AugAssign):
        target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
        return ast.unparse(target) == "__all__"
    return isinstance(statement, ast.Import | ast.ImportFrom) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )


def _is_door(source: Source) -> bool:
    """Whether a module is there for its path: a package's own, or one that only lists names of others."""
    return source.path.name == "__init__.py" or all(map(_lists_names, source.tree.body))


def _size(source: Source) -> int:
    """Lines of a module. Of a door only those that do something: a list of names is no code."""
    if not _is_door(source):
        return len(source.lines)
    own = [statement for statement in source.tree.body if not _lists_names(statement)]
    return sum((statement.end_lineno or statement.lineno) - statement.lineno + 1 for statement in own)


@pytest.mark.parametrize("adapter", FRAMEWORK_ADAPTERS)
def test_an_adapter_and_each_feature_of_it_are_thin(adapter: str) -> None:
    sizes: dict[str, list[tuple[int, str]]] = {part: [] for part in (PROPER, *FEATURES[adapter])}
    for source in _adapters()[adapter]:
        sizes.setdefault(_part(_inside(source)), []).append((_size(source), source.name))
    unknown = sorted(sizes.keys() - {PROPER, *FEATURES[adapter]})
    assert not unknown, report(
        f"Packages of byteps.{adapter} without a place", unknown, "List each in FEATURES."
    )
    totals = {part: sum(size for size, _ in files) for part, files in sizes.items()}
    wide = [f"{part}: {total} lines" for part, total in totals.items() if not 0 < total <= LINES]
    assert not wide, report(
        f"Packages of byteps.{adapter} that are empty or have more than {LINES} lines",
        [*wide, *(f"{name}: {size}" for part in sizes for size, name in sorted(sizes[part], reverse=True))],
        "Move what needs no framework to byteps.adapters, and what is a feature of its own to a package.",
    )


def _inside(source: Source) -> str:
    """A module's name such that a package itself counts as one of its modules."""
    name = module_name(source)
    return f"{name}.__init__" if source.path.name == "__init__.py" else name


def test_features_stand_on_the_adapter_and_not_the_other_way_round() -> None:
    known = modules()
    doors = {name for name, source in known.items() if area(name) in FEATURES and _is_door(source)}
    level = {
        (adapter, part): number
        for adapter, features in FEATURES.items()
        for number, part in enumerate((PROPER, *features))
    }
    inside = [
        (place, module, imported)
        for module, imported, place in edges()
        if area(module) in FEATURES and area(imported) == area(module) and module not in doors
    ]
    wrong = [
        f"{place}: {module} imports {imported}"
        for place, module, imported in inside
        if imported in doors or level[area(imported), _part(imported)] > level[area(module), _part(module)]
    ]
    assert inside
    assert not wrong, report(
        "Imports against the order of an adapter's features, or through a door",
        wrong,
        "Import the module that defines the name; move what both need down, or pass it in.",
    )
