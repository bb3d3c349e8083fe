"""Which module may import which: the layers, no cycle, adapters apart from each other."""

from __future__ import annotations

from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter

from .tree import Source, imports, module_name, python_sources, report

# From the lowest layer up. A module imports only from layers before its own, so not from its own either.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "dtypes"),
    ("config",),
    ("logs",),
    ("_native",),
    ("scheduler",),
    ("wire", "network"),
    ("security",),
    ("placement", "hierarchy"),
    ("diagnostics",),
    ("trace",),
    ("tuning",),
    ("topology",),
    ("children",),
    ("coordinator",),
    ("control",),
    ("dialing", "transport"),
    ("neighbours",),
    ("server", "worker"),
    ("communicator",),
    ("planner",),
    ("in_flight",),
    ("session",),
    ("joining",),
    ("testing",),
    ("adapters",),
    ("torch", "tensorflow", "mxnet", "jax"),
    ("keras",),
    ("launch",),
    ("doctor",),
    ("bench",),
    ("compat",),
    ("cli",),
    ("__main__",),
)
FRAMEWORK_ADAPTERS = ("torch", "tensorflow", "keras", "mxnet", "jax")
# Keras has no tensors of its own: its adapter stands on those of its backends.
KERAS_BACKENDS = ("tensorflow", "torch", "jax")
# Modules that train something or watch training, and are imported only to do that.
TRAINERS = {
    "byteps.bench.training": "torch",
    "byteps.bench.models": "torch",
    "byteps.planner.recording": "torch",
}


def modules() -> dict[str, Source]:
    """Every module of the package by its name."""
    return {module_name(source): source for source in python_sources("src")}


def area(module: str) -> str:
    """The part of the package that a module belongs to: ``byteps.torch.ddp`` is in ``torch``."""
    if f"{module}.".startswith("byteps.tensorflow.keras."):
        return "keras"  # the same under another name
    return module.split(".")[1] if "." in module else ""


def _imports(module: str, source: Source, known: set[str]) -> Iterator[tuple[int, str]]:
    """Every module of this package that a module imports, wherever the statement stands."""
    package = module.split(".") if source.path.name == "__init__.py" else module.split(".")[:-1]
    for line, written, names in imports(source):
        base = written.lstrip(".")
        if level := len(written) - len(base):
            base = ".".join([*package[: len(package) - level + 1], *([base] if base else [])])
        if base.split(".")[0] == "byteps":
            members = [f"{base}.{name}" for name in names] or [base]
            yield from ((line, member if member in known else base) for member in members)


def edges() -> Iterator[tuple[str, str, str]]:
    """All imports inside the package as (importing module, imported module, place)."""
    known = modules()
    for module, source in known.items():
        for line, imported in _imports(module, source, {*known, "byteps._native"}):
            yield module, imported, f"{source.name}:{line}"


def test_every_module_has_a_layer() -> None:
    known = {name for layer in LAYERS for name in layer} | {""}
    unknown = sorted({area(module) for module in modules()} - known)
    assert not unknown, report(
        "Modules without a layer", unknown, "Give each its line in LAYERS, as low as it fits."
    )


def test_modules_import_only_from_lower_layers() -> None:
    level = {name: number for number, layer in enumerate(LAYERS) for name in layer}
    wrong = [
        f"{place}: {module} imports {imported}"
        for module, imported, place in edges()
        if area(module) and area(imported) and area(module) != area(imported)
        if level[area(imported)] >= level[area(module)]
    ]
    assert not wrong, report("Imports against the layers", wrong, "Move the shared part down, or pass it in.")


def test_the_package_itself_is_not_imported_from_inside() -> None:
    wrong = [f"{place}: {module}" for module, imported, place in edges() if imported == "byteps"]
    assert not wrong, report(
        "Imports of `byteps` from inside it", wrong, "Import the module that defines the name."
    )


def test_no_import_cycle() -> None:
    graph: dict[str, set[str]] = {module: set() for module in modules()}
    for module, imported, _ in edges():
        if imported != module:
            graph[module].add(imported)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(
            f"Import cycle: {' -> '.join(error.args[1])}\nMove what both need into a third."
        ) from None


def test_adapters_do_not_import_each_other() -> None:
    wrong = [
        f"{place}: {module} imports {imported}"
        for module, imported, place in edges()
        if area(module) != area(imported)
        if {area(module), area(imported)} <= set(FRAMEWORK_ADAPTERS)
        if not (area(module) == "keras" and area(imported) in KERAS_BACKENDS)
    ]
    assert not wrong, report(
        "Adapters that import each other", wrong, "Shared parts live in byteps.adapters."
    )


def test_frameworks_are_imported_by_their_own_adapter_only() -> None:
    wrong = [
        f"{source.name}:{line} imports {name}"
        for module, source in modules().items()
        for line, name, _ in imports(source)
        if name.split(".")[0] in set(FRAMEWORK_ADAPTERS) - {area(module), TRAINERS.get(module)}
    ]
    assert not wrong, report("Framework imports outside", wrong, "Pass a buffer or a callable instead.")
