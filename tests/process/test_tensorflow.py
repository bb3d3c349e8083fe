"""Graphs of TensorFlow over real processes: small thread pools, gradients beside the backward pass."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from .jobs import run_byteps

SCRIPT = str(Path(__file__).with_name("graphs.py"))


@pytest.mark.timeout(110)
@pytest.mark.parametrize("what", ["one_thread", "overlap"])
def test_graphs(what: str) -> None:
    job = run_byteps("run", "-np", "2", "--servers", "1", sys.executable, SCRIPT, what)
    code, output, errors = job.finish(100.0)
    assert code == 0, f"{output}\n{errors}"
