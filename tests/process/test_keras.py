"""Keras 3 over each of its backends: two ranks train as one process would, with all callbacks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from .jobs import Job

TIMEOUT_S = 150.0  # frameworks take seconds to import, and compile every step that they have not seen
SCRIPT = str(Path(__file__).with_name("keras_rank.py"))


@pytest.mark.timeout(TIMEOUT_S + 10)
@pytest.mark.parametrize("backend", ["tensorflow", "torch", "jax"])
def test_keras(backend: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "byteps", "run", "-np", "2", "--servers", "1", sys.executable, SCRIPT]
    code, output, errors = Job(command, {"KERAS_BACKEND": backend}, tmp_path).finish(TIMEOUT_S)
    assert code == 0, f"{output}\n{errors}"
    for rank in range(2):
        assert f"[worker {rank}] errors" in output
