"""Adapters: nothing is written in two of them, and what a new one needs stays small."""

from __future__ import annotations

import ast

import pytest

from .duplicates import find_pairs
from .test_layers import FRAMEWORK_ADAPTERS, area
from .tree import Source, module_name, python_sources, report

EXPORTS = "src/byteps/adapters/exports.py"
# docs/adapters.md says what those of more than 600 lines have that others lack.
LINES = {"jax": 600, "keras": 600, "mxnet": 1050, "tensorflow": 1750, "torch": 5700}


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


@pytest.mark.parametrize("adapter", FRAMEWORK_ADAPTERS)
def test_an_adapter_is_thin(adapter: str) -> None:
    lengths = sorted(((len(source.lines), source.name) for source in _adapters()[adapter]), reverse=True)
    total = sum(length for length, _ in lengths)
    assert total <= LINES[adapter], report(
        f"byteps.{adapter} has {total} lines, at most {LINES[adapter]} are meant",
        [f"{name}: {length}" for length, name in lengths[:10]],
        "Move what needs no framework to byteps.adapters, where others can use it.",
    )
