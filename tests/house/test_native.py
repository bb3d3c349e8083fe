"""What holds for the C++ side: one binding file, no globals, no environment, a stub that tells the truth."""

from __future__ import annotations

import ast
import re
from types import ModuleType

from byteps import _native

from . import cpp
from .tree import PACKAGE, Source, native_sources, report

BINDING = ("native/bind.cc", "native/bind.h", "native/bind_ucx.cc")
BINDING_ONLY = re.compile(r"Python\.h|nanobind|pybind11|\bPyObject\b|\bPy_\w+|\bPyGILState_\w+")
WAITS = re.compile(r"\b(?:sleep_for|sleep_until|usleep|nanosleep)\b")
ENVIRONMENT = re.compile(r"\b(?:secure_)?getenv\b|\bsetenv\b|\bputenv\b|\benviron\b")


def _code(source: Source) -> list[str]:
    """The lines without their comments."""
    text = re.sub(r"/\*.*?\*/", lambda m: "\n" * m.group().count("\n"), source.text, flags=re.DOTALL)
    return [re.sub(r"//.*", "", line) for line in text.splitlines()]


def _matches(pattern: re.Pattern[str], *, allowed: tuple[str, ...] = ()) -> list[str]:
    return [
        f"{source.name}:{number} {line.strip()}"
        for source in native_sources()
        if source.name not in allowed
        for number, (line, code) in enumerate(zip(source.text.splitlines(), _code(source), strict=True), 1)
        if pattern.search(code)
    ]


def test_only_the_binding_file_knows_python() -> None:
    found = _matches(BINDING_ONLY, allowed=BINDING)
    assert not found, report(
        "Python in the native core", found, f"Keep it in {BINDING[0]}; pass plain values on."
    )


def test_native_code_reads_no_environment() -> None:
    found = _matches(ENVIRONMENT)
    assert not found, report("Environment read", found, "Pass the value in as an argument from config.py.")


def test_native_code_never_sleeps() -> None:
    found = [place for place in _matches(WAITS) if not place.endswith("// workload")]
    assert not found, report("Sleeps", found, "Wait on a condition variable, an eventfd or epoll.")


def test_native_code_has_no_globals() -> None:
    found = [
        f"{source.name}:{line} {text}"
        for source in native_sources()
        for line, text in cpp.outline(source.text).globals
    ]
    assert not found, report("Variables with static lifetime", found, "Make it a member, or constexpr.")


def _stub_names(body: list[ast.stmt]) -> dict[str, list[ast.stmt]]:
    """Public names that a stub's body defines, each class with its own body."""
    names: dict[str, list[ast.stmt]] = {}
    for node in body:
        if isinstance(node, ast.ClassDef):
            names[node.name] = node.body
        elif isinstance(node, ast.FunctionDef):
            names[node.name] = []
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names[node.target.id] = []
        elif isinstance(node, ast.Assign):
            names.update({target.id: [] for target in node.targets if isinstance(target, ast.Name)})
    return {name: inner for name, inner in names.items() if not name.startswith("_")}


def _public(thing: ModuleType | type) -> set[str]:
    return {name for name in vars(thing) if not name.startswith("_")}


def test_the_stub_has_the_names_of_the_module() -> None:
    stub = _stub_names(ast.parse((PACKAGE / "_native.pyi").read_text(encoding="utf-8")).body)
    built = {name: getattr(_native, name) for name in _public(_native)}
    wrong = sorted(set(stub) ^ set(built))
    for name, thing in built.items():
        if isinstance(thing, type):
            members = set(_stub_names(stub.get(name, [])))
            wrong += [f"{name}.{member}" for member in sorted(members ^ _public(thing))]
    assert not wrong, report(
        "Names in _native.pyi or in the module only", wrong, "Bring the stub up to date."
    )
