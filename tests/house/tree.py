"""What the house tests look at: the repository's source files, parsed once."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "byteps"
PYTHON_FOLDERS = ("src", "tests", "benchmarks", "examples")
NATIVE_SUFFIXES = (".cc", ".h")


@dataclass(frozen=True)
class Source:
    """One source file.

    Args:
        path: Where it lies.
        text: Its whole text.
    """

    path: Path
    text: str

    @property
    def name(self) -> str:
        """The path as a reader would type it, relative to the repository."""
        return self.path.relative_to(ROOT).as_posix()

    @functools.cached_property
    def lines(self) -> list[str]:
        """The physical lines."""
        return self.text.splitlines()

    @functools.cached_property
    def tree(self) -> ast.Module:
        """The syntax tree (Python files only)."""
        return ast.parse(self.text, filename=self.name)


def _files(folder: Path, suffixes: tuple[str, ...]) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(ROOT).parts
        generated = any(part == "__pycache__" or part.startswith(("build", ".")) for part in parts)
        if path.suffix in suffixes and path.is_file() and not generated:
            yield path


@functools.cache
def python_sources(*folders: str) -> tuple[Source, ...]:
    """All Python files below the given top-level folders (by default: all four)."""
    found = (path for name in folders or PYTHON_FOLDERS for path in _files(ROOT / name, (".py",)))
    return tuple(Source(path, path.read_text(encoding="utf-8")) for path in found)


@functools.cache
def native_sources() -> tuple[Source, ...]:
    """All C++ files, native tests included."""
    found = _files(ROOT / "native", NATIVE_SUFFIXES)
    return tuple(Source(path, path.read_text(encoding="utf-8")) for path in found)


def module_name(source: Source) -> str:
    """The dotted name of a file below ``src``, such as ``byteps.coordinator.core``."""
    parts = source.path.relative_to(ROOT / "src").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def functions(source: Source) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function and method of a Python file, nested ones included."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def imports(source: Source) -> Iterator[tuple[int, str, list[str]]]:
    """Every import of a Python file as (line, module, names taken from it); relative ones keep their dots."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield node.lineno, module, [alias.name for alias in node.names]


def dotted(node: ast.AST) -> str:
    """``a.b.c`` for a chain of names and attributes, else an empty string."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (head := dotted(node.value)):
        return f"{head}.{node.attr}"
    return ""


def report(problem: str, places: list[str], remedy: str) -> str:
    """The text of a failed rule: what is wrong, where, and what to do."""
    return f"{problem}:\n  " + "\n  ".join(places) + f"\n{remedy}"
