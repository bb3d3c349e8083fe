"""What is installed: Python, byteps with its native module, frameworks. No framework is imported."""

from __future__ import annotations

import importlib
import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from byteps.doctor.findings import Finding, fail, ok, warn

_NEEDED = ("numpy", "msgspec")
_FRAMEWORKS = ("torch", "tensorflow", "keras", "jax", "mxnet")
_LEAST_TORCH = (2, 1)
_REINSTALL = "reinstall it for this Python: pip install --force-reinstall byteps"


def check_installation() -> Iterator[Finding]:
    """Look at Python, byteps, what it needs, and the frameworks."""
    yield ok("python", f"{platform.python_version()}, {sys.executable}, {platform.platform()}")
    yield _package()
    yield _native()
    yield from _requirements()
    yield _frameworks()


def _package() -> Finding:
    found = _version("byteps")
    if found is None:
        return warn("byteps", "runs from a folder that is not installed", "pip install byteps")
    return ok("byteps", found)


def _native() -> Finding:
    try:
        native = importlib.import_module("byteps._native")
    except ImportError as error:
        return fail("native module", f"cannot be loaded: {error}", _REINSTALL)
    simd = native.instruction_set()
    text = f"loads; sums with {simd} code on this {platform.machine()} CPU"
    if simd == "baseline" and platform.machine() == "x86_64":
        return warn("native module", text, "the CPU has no AVX2: prefer newer machines for servers")
    return ok("native module", text)


def _requirements() -> Iterator[Finding]:
    for name in _NEEDED:
        found = _version(name)
        if found is None:
            yield fail(name, "is not installed", f"pip install {name}")
        else:
            yield ok(name, found)


def _frameworks() -> Finding:
    found = {name: known for name in _FRAMEWORKS if (known := _version(name)) is not None}
    if not found:
        return ok("frameworks", "none; a server or coordinator needs none, byteps.torch needs torch")
    text = ", ".join(f"{name} {known}" for name, known in found.items())
    if "torch" in found and _numbers(found["torch"]) < _LEAST_TORCH:
        return fail("frameworks", text, "byteps.torch needs torch 2.1 or newer: pip install --upgrade torch")
    return ok("frameworks", text)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("+")[0].split(".")[:2] if part.isdigit())
