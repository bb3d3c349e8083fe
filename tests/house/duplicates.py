"""Counts copies: two runs of at least six lines that are equal once names, strings and numbers are folded.

A line becomes the sequence of its tokens: keywords and operators as they are, every name ``N``, every string
``S``, every number ``0``. Passed over are blank and comment lines, imports, and what only declares:
docstrings, class headers and fields, tables of literals. A pair is one maximal run of equal lines in two
places that do not overlap. `python -m tests.house.duplicates`, from the repository, lists the pairs.
"""

from __future__ import annotations

import ast
import io
import keyword
import tokenize
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import TypeGuard

from . import cpp
from .tree import Source, native_sources, python_sources

RUN_LINES = 6
_CPP_KEYWORDS = """
    auto bool break case catch char class const constexpr continue default delete do double else enum explicit
    false float for friend if inline int long namespace new noexcept nullptr operator private protected public
    requires return short signed sizeof static struct switch template this throw true try typename union
    unsigned using virtual void volatile while
"""
_COLLECTIONS = (ast.List, ast.Tuple, ast.Set, ast.Dict)
_ATOMS = (ast.Constant, ast.Name, ast.Attribute, ast.BinOp, ast.UnaryOp)
_IN_A_TABLE = (*_COLLECTIONS, *_ATOMS, ast.expr_context, ast.operator, ast.unaryop)
_LAYOUT = {
    tokenize.NEWLINE,
    tokenize.NL,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.COMMENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


@dataclass(frozen=True)
class Line:
    """One line that counts: where it stands and its folded text."""

    place: str
    folded: str


@dataclass(frozen=True)
class Pair:
    """Two equal runs: the places where they begin and how many lines they have."""

    first: str
    second: str
    length: int

    def __str__(self) -> str:
        return f"{self.first} and {self.second}, {self.length} lines"


def folded_lines(source: Source) -> list[Line]:
    """The lines of one file that count, in order."""
    python = source.path.suffix == ".py"
    by_line: dict[int, list[str]] = defaultdict(list)
    for number, text in _python_tokens(source) if python else _cpp_tokens(source):
        by_line[number].append(text)
    skipped = _declaring_lines(source) if python else cpp.outline(source.text).declaring
    return [Line(f"{source.name}:{n}", " ".join(by_line[n])) for n in sorted(set(by_line) - skipped)]


def _python_tokens(source: Source) -> Iterable[tuple[int, str]]:
    kinds = {tokenize.NUMBER: "0", tokenize.STRING: "S"}
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type in _LAYOUT:
            continue
        folded = kinds.get(token.type, token.string)
        if token.type == tokenize.NAME and not keyword.iskeyword(token.string):
            folded = "N"
        yield token.start[0], folded


def _cpp_tokens(source: Source) -> Iterable[tuple[int, str]]:
    kinds, keywords = {"number": "0", "string": "S"}, set(_CPP_KEYWORDS.split())
    for token in cpp.tokens(source.text):
        folded = kinds.get(token.kind, token.text)
        if token.kind == "name" and token.text not in keywords:
            folded = "N"
        yield token.line, folded


def _declaring_lines(source: Source) -> set[int]:
    """Lines of a Python file that do nothing: imports, docstrings, class headers, fields, literal tables."""
    lines: set[int] = set()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ClassDef):
            lines |= set(range(node.lineno, node.body[0].lineno))
            for field in node.body:
                lines |= _span(field) if isinstance(field, ast.Assign | ast.AnnAssign) else set()
        elif isinstance(node, ast.Import | ast.ImportFrom) or _is_literal(node) or _is_docstring(node):
            lines |= _span(node)
    return lines


def _span(node: ast.stmt | ast.expr) -> set[int]:
    return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))


def _is_docstring(node: ast.AST) -> TypeGuard[ast.Expr]:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_literal(node: ast.AST) -> TypeGuard[ast.expr]:
    """Whether a node is a table of several lines: constants and names, or types joined by ``|``."""
    if not isinstance(node, (*_COLLECTIONS, ast.BinOp)) or node.lineno == node.end_lineno:
        return False
    return all(isinstance(part, _IN_A_TABLE) for part in ast.walk(node))


def find_pairs(sources: Iterable[Source]) -> list[Pair]:
    """All duplicate pairs within and between the given files."""
    lines = [line for source in sources for line in [*folded_lines(source), None]]  # None ends a file
    text = [line.folded if line else None for line in lines]
    windows: dict[tuple[str | None, ...], list[int]] = defaultdict(list)
    for start in range(len(text) - RUN_LINES + 1):
        window = tuple(text[start : start + RUN_LINES])
        if None not in window:
            windows[window].append(start)
    pairs = []
    for starts in windows.values():
        for first, second in combinations(starts, 2):
            continued = first > 0 and text[first - 1] is not None and text[first - 1] == text[second - 1]
            length = _run_length(text, first, second)
            head, tail = lines[first], lines[second]
            if head and tail and not continued and length >= RUN_LINES:
                pairs.append(Pair(head.place, tail.place, length))
    return pairs


def _run_length(text: list[str | None], first: int, second: int) -> int:
    """Equal lines from two starts on, stopped where the first run would reach the second."""
    limit = min(second - first, len(text) - second)
    both = zip(text[first : first + limit], text[second : second + limit], strict=True)
    return next((length for length, (one, other) in enumerate(both) if one is None or one != other), limit)


def rate(pairs: int, sources: Iterable[Source]) -> float:
    """Pairs per 1,000 physical lines."""
    return 1000 * pairs / sum(len(source.lines) for source in sources)


if __name__ == "__main__":
    everything = [*python_sources(), *native_sources()]
    found = find_pairs(everything)
    print(*found, f"{len(found)} pairs, {rate(len(found), everything):.2f} per 1,000 lines", sep="\n")
