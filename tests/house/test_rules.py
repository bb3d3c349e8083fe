"""What no Python file may hold: bare functions, environment reads, hidden state, sleeps, ports, pickles."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from .tree import Source, dotted, functions, imports, python_sources, report

ENVIRONMENT_READER = "src/byteps/config/environment.py"
STATE_HOLDER = "src/byteps/adapters/current.py"
PICKLE_PLACES = ("src/byteps/adapters/objects.py", "src/byteps/launch/function.py")
ENVIRONMENT_NAMES = {
    f"os.{name}" for name in ("environ", "environb", "getenv", "getenvb", "putenv", "unsetenv")
}
PICKLERS = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}
PORT_TAKERS = {
    "bind",
    "connect",
    "connect_ex",
    "listen",
    "serve",
    "create_server",
    "start_server",
    "create_connection",
    "open_connection",
    "TCPStore",
    "HTTPServer",
}
LOCAL_PORT = re.compile(r"(?:\w+://)?(?:localhost|127(?:\.\d+){3}|0\.0\.0\.0|\[::1?\]):[1-9]\d*")
MUTATORS = {
    "add",
    "append",
    "appendleft",
    "clear",
    "discard",
    "extend",
    "insert",
    "pop",
    "popitem",
    "popleft",
    "remove",
    "setdefault",
    "update",
}
# Calls whose result cannot change, or not in a way that anyone could notice.
CONSTANT_CALLS = {
    "frozenset",
    "range",
    "tuple",
    "int",
    "float",
    "TypeVar",
    "ParamSpec",
    "NewType",
    "MappingProxyType",
    "types.MappingProxyType",
    "namedtuple",
    "collections.namedtuple",
    "re.compile",
    "struct.Struct",
    "logging.getLogger",
    "Path",
    "attrgetter",
    "operator.attrgetter",
    "jax.ShapeDtypeStruct",
    "jax.extend.core.Primitive",
}


def _is_annotated(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    spread = [argument for argument in (arguments.vararg, arguments.kwarg) if argument]
    bound = named[:1] if named and named[0].arg in {"self", "cls"} else []
    return function.returns is not None and all(a.annotation for a in [*named, *spread] if a not in bound)


def test_every_function_is_annotated() -> None:
    bare = [
        f"{s.name}:{f.lineno} {f.name}"
        for s in python_sources()
        for f in functions(s)
        if not _is_annotated(f)
    ]
    assert not bare, report(
        "Functions without full annotations", bare, "Annotate each argument and the result."
    )


def test_every_file_says_what_it_is() -> None:
    silent = [s.name for s in python_sources() if s.text.strip() and not ast.get_docstring(s.tree)]
    assert not silent, report("Files without a docstring", silent, "Say in 1-6 lines what the file is.")


def test_annotations_are_not_evaluated() -> None:
    line = "from __future__ import annotations"
    missing = [s.name for s in python_sources() if s.tree.body[1:] and line not in s.lines]
    assert not missing, report(f"Files without `{line}`", missing, "Put it at the head of the module.")


def test_the_environment_is_read_in_one_file() -> None:
    found = []
    for source in python_sources("src", "benchmarks", "examples"):
        attributes = [node for node in ast.walk(source.tree) if isinstance(node, ast.Attribute)]
        lines = [node.lineno for node in attributes if dotted(node) in ENVIRONMENT_NAMES]
        taken = [(line, f"{name}.{member}") for line, name, names in imports(source) for member in names]
        lines += [line for line, name in taken if name in ENVIRONMENT_NAMES]
        found += [f"{source.name}:{line}" for line in lines]
    outside = [place for place in found if not place.startswith(ENVIRONMENT_READER)]
    assert found, f"The rule saw no read in {ENVIRONMENT_READER}: it looks in the wrong place."
    assert not outside, report(
        "Environment touched", outside, "Give Config a field or use child_environment."
    )


def _bindings(body: list[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    """Names bound to a value in a module's or class's own body, conditions and try blocks included."""
    for node in body:
        if isinstance(node, ast.Assign):
            yield from ((dotted(target), node.value) for target in node.targets)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            yield dotted(node.target), node.value
        elif isinstance(node, ast.If | ast.Try):
            yield from _bindings([*node.body, *node.orelse])
        elif isinstance(node, ast.ClassDef) and not _is_dataclass(node):
            yield from _bindings(node.body)


def _is_dataclass(node: ast.ClassDef) -> bool:
    """Whether class-level assignments only describe fields."""
    bases = {dotted(base).rpartition(".")[2] for base in node.bases}
    return "Struct" in bases or any("dataclass" in ast.dump(decorator) for decorator in node.decorator_list)


@functools.cache
def _constant_classes() -> set[str]:
    """Names of the package's classes whose instances hold no state of their own: frozen ones, descriptors."""
    classes = [n for s in python_sources("src") for n in ast.walk(s.tree) if isinstance(n, ast.ClassDef)]
    return {node.name for node in classes if _is_frozen(node) or _is_descriptor(node)}


def _is_frozen(node: ast.ClassDef) -> bool:
    values = [keyword.value for keyword in _class_keywords(node) if keyword.arg == "frozen"]
    return any(isinstance(value, ast.Constant) and value.value is True for value in values)


def _is_descriptor(node: ast.ClassDef) -> bool:
    return any(isinstance(member, ast.FunctionDef) and member.name == "__get__" for member in node.body)


def _class_keywords(node: ast.ClassDef) -> list[ast.keyword]:
    calls = [decorator for decorator in node.decorator_list if isinstance(decorator, ast.Call)]
    return [*node.keywords, *(keyword for call in calls for keyword in call.keywords)]


def _is_mutable(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        return dotted(value.func) not in CONSTANT_CALLS | _constant_classes()
    if isinstance(value, ast.Tuple):
        return any(_is_mutable(element) for element in value.elts)
    return isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp)


def _changed_names(source: Source) -> set[str]:
    """Names whose value some statement of the file changes in place."""
    changed = set()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            changed.add(dotted(node.value))
        elif isinstance(node, ast.AugAssign):
            changed.add(dotted(node.target))
        elif (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS
        ):
            changed.add(dotted(node.func.value))
    return changed


def _hidden_state(source: Source) -> Iterator[str]:
    changed = _changed_names(source)
    for name, value in _bindings(source.tree.body):
        table = isinstance(value, ast.Dict | ast.List | ast.Set | ast.DictComp) and name.isupper()
        if name != "__all__" and _is_mutable(value) and (not table or name in changed):
            yield f"{source.name}:{value.lineno} {name}"
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Global):
            yield f"{source.name}:{node.lineno} global {', '.join(node.names)}"
    for function in functions(source):
        for decorator in function.decorator_list:
            call = decorator.func if isinstance(decorator, ast.Call) else decorator
            if dotted(call).rpartition(".")[2] in {"cache", "lru_cache"}:
                yield f"{source.name}:{function.lineno} {function.name} remembers its results"


def test_no_module_keeps_state() -> None:
    found = [place for source in python_sources("src") for place in _hidden_state(source)]
    outside = [place for place in found if not place.startswith(f"{STATE_HOLDER}:")]
    assert not outside, report(
        "State at module or class level",
        outside,
        "Let the session own it. Tables that never change have upper-case names.",
    )


def _sleeps(source: Source) -> Iterator[int]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and dotted(node.func) in {"time.sleep", "sleep"}:
            yield node.lineno


def test_nothing_sleeps_to_wait() -> None:
    """Outside the package a sleep may stand for work: its line ends in ``# workload``."""
    found = [f"{source.name}:{line}" for source in python_sources("src") for line in _sleeps(source)]
    for source in python_sources("tests", "benchmarks", "examples"):
        lines = [line for line in _sleeps(source) if not source.lines[line - 1].endswith("# workload")]
        found += [f"{source.name}:{line}" for line in lines]
    assert not found, report("Sleeps", found, "Wait for the event itself: a condition, a socket, a join.")


def _fixed_ports(source: Source) -> Iterator[int]:
    """Lines that name a port of this machine, or hand one to a call that opens a socket."""
    for node in ast.walk(source.tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and LOCAL_PORT.fullmatch(node.value)
        ):
            yield node.lineno
        if isinstance(node, ast.Call) and dotted(node.func).rpartition(".")[2] in PORT_TAKERS:
            ports = [keyword.value for keyword in node.keywords if "port" in (keyword.arg or "")]
            ports += [address.elts[1] for address in node.args if isinstance(address, ast.Tuple)]
            numbers = [port.value for port in [*ports, *node.args[1:2]] if isinstance(port, ast.Constant)]
            if any(type(number) is int and number >= 1024 for number in numbers):
                yield node.lineno


def test_ports_are_chosen_by_the_kernel() -> None:
    sources = [source for source in python_sources() if source.path.parent != Path(__file__).parent]
    found = [f"{source.name}:{line}" for source in sources for line in _fixed_ports(source)]
    assert not found, report("Fixed ports", found, "Bind port 0 and publish the number the kernel chose.")


def test_pickle_has_one_place() -> None:
    found = [
        f"{source.name}:{line}"
        for source in python_sources("src")
        for line, name, _ in imports(source)
        if name.split(".")[0] in PICKLERS and source.name not in PICKLE_PLACES
    ]
    assert not found, report(
        "Pickle imported", found, f"Use msgpack; only {PICKLE_PLACES} may, when asked to."
    )


def test_every_test_is_bounded_in_time(request: pytest.FixtureRequest) -> None:
    timeout = float(request.config.getini("timeout") or 0)
    assert 0 < timeout <= 60, "Set `timeout` in pyproject.toml to at most 60 s: a hang must become a failure."
