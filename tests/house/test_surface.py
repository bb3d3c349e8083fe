"""The public names, and what it costs to import them."""

from __future__ import annotations

import importlib
import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

import byteps
import byteps.compat.horovod
import byteps.jax
import byteps.keras.callbacks
import byteps.scheduler
import byteps.tensorflow
import byteps.tensorflow.keras.callbacks
import byteps.torch
import byteps.torch.parallel

from .tree import ROOT, report

NAMES_FILE = Path(__file__).with_name("public_names.txt")
FRAMEWORKS = ("torch", "tensorflow", "keras", "mxnet", "jax", "numpy")
TORCH_SHARE = 0.05
HELP_FACTOR = 3.0


def _environment() -> dict[str, str]:
    """As usual, with byte code kept: that is how an installed package is imported."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _python(code: str) -> str:
    """What a fresh interpreter prints for a few statements."""
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=_environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=50,
    ).stdout


def _cpu_seconds(*command: str) -> float:
    """User and system time of one child process, seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=_environment(), check=True, stdout=subprocess.DEVNULL, timeout=50)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_public_names_are_the_listed_ones() -> None:
    modules = (
        byteps,
        byteps.compat.horovod,
        byteps.jax,
        byteps.keras,
        byteps.keras.callbacks,
        byteps.scheduler,
        byteps.tensorflow,
        byteps.tensorflow.keras,
        byteps.tensorflow.keras.callbacks,
        byteps.torch,
        byteps.torch.parallel,
    )
    found = sorted(f"{module.__name__}.{name}" for module in modules for name in module.__all__)
    names = NAMES_FILE.read_text(encoding="utf-8").split()
    listed = [name for name in names if not name.startswith("byteps.mxnet.")]  # tests/mxnet looks at them
    changed = [f"+ {name}" for name in found if name not in listed]
    changed += [f"- {name}" for name in listed if name not in found]
    remedy = f"If that is meant, bring {NAMES_FILE.relative_to(ROOT)} and CHANGELOG.md up to date."
    assert found == listed, report("The public names changed", changed, remedy)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("torch.mpi_ops", "allreduce_async_"),
        ("torch.ops", "push_pull_async"),
        ("torch.compression", "Compression"),
        ("torch.functions", "broadcast_optimizer_state"),
        ("torch.optimizer", "DistributedOptimizer"),
        ("torch.cross_barrier", "CrossBarrier"),
        ("torch.sync_batch_norm", "SyncBatchNorm"),
        ("tensorflow.mpi_ops", "allreduce"),
        ("tensorflow.compression", "Compression"),
        ("tensorflow.functions", "broadcast_variables"),
        ("tensorflow.optimizer", "DistributedOptimizer"),
        ("tensorflow.sync_batch_norm", "SyncBatchNormalization"),
    ],
)
def test_modules_that_scripts_import_from_have_the_same_objects(path: str, name: str) -> None:
    adapter = importlib.import_module(f"byteps.{path.split('.')[0]}")
    assert getattr(importlib.import_module(f"byteps.{path}"), name) is getattr(adapter, name)


def test_importing_byteps_imports_no_framework() -> None:
    loaded = _python("import sys, byteps; print(*{name.split('.')[0] for name in sys.modules})").split()
    assert not set(FRAMEWORKS) & set(loaded), (
        "byteps/__init__.py pulls in a framework: import it where it is used."
    )


def test_importing_the_torch_adapter_adds_little() -> None:
    # Collects first: torch's many objects would be looked through in whatever is imported next.
    code = """if True:
        import gc, time, torch
        before = time.process_time()
        gc.collect()
        begin = time.process_time()
        import byteps.torch
        print((time.process_time() - begin) / before)
    """
    _python("import torch, byteps.torch")  # leaves the byte code
    shares = [float(_python(code)) for _ in range(5)]
    assert statistics.median(shares) < TORCH_SHARE, (
        f"importing byteps.torch adds {statistics.median(shares):.1%} to the CPU time of `import torch`.\n"
        "`python -X importtime -c 'import torch, byteps.torch'` shows what to import later."
    )


def test_help_is_quick() -> None:
    byteps_command = str(Path(sys.executable).parent / "byteps")
    plain, helped = [], []
    for _ in range(9):
        plain.append(_cpu_seconds(sys.executable, "-c", "pass"))
        helped.append(_cpu_seconds(byteps_command, "--help"))
    factor = statistics.median(helped) / statistics.median(plain)
    assert factor < HELP_FACTOR, (
        f"`byteps --help` takes {factor:.1f} times the CPU time of `python -c pass`.\n"
        "`python -X importtime -m byteps --help` shows what to import after the arguments are parsed."
    )
