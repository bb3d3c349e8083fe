"""The examples that need nothing else run, and show what they say."""

from __future__ import annotations

import re
import sys

import pytest

from tests.house.tree import ROOT

from .jobs import Job, run_byteps


def test_an_urgent_file_cuts_in() -> None:
    code, output, errors = Job([sys.executable, str(ROOT / "examples" / "schedule_anything.py")]).finish()
    assert code == 0, errors
    lines = re.findall(r"^(\S+) +urgent: +(\d+) ms +all: +(\d+) ms$", output, re.MULTILINE)
    urgent_ms = {policy: float(urgent) for policy, urgent, _ in lines}
    all_ms = {policy: float(total) for policy, _, total in lines}
    assert urgent_ms["fifo"] == all_ms["fifo"]
    assert urgent_ms["priority"] < 0.3 * urgent_ms["fifo"]
    assert all_ms["priority"] < 1.5 * all_ms["fifo"]


@pytest.mark.slow
@pytest.mark.timeout(110)
@pytest.mark.parametrize("example", ["mnist_tensorflow.py", "mnist_keras.py", "mnist_jax.py"])
def test_a_cnn_learns_mnist_on_two_workers(example: str) -> None:
    script = str(ROOT / "examples" / example)
    job = run_byteps("run", "-np", "2", "--servers", "2", sys.executable, script, "--epochs", "3")
    code, output, errors = job.finish(100.0)
    assert code == 0, errors
    found = re.findall(r"held-out accuracy: ([\d.]+) %", output)
    assert float(found[-1]) >= 93.0, output
