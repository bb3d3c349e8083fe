"""The GPU checks do not pass silently where there is no GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch

from .__main__ import NOT_RUN_EXIT_CODE
from .one_device import wrong_sums


def test_without_a_gpu_the_checks_say_that_they_did_not_run() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.gpu"],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert ended.returncode == NOT_RUN_EXIT_CODE
    assert "GPU checks: not run" in ended.stdout


def test_what_stands_in_for_collectives_on_one_device_sums_right() -> None:
    """The check of streams and copies, without either."""
    assert wrong_sums(torch.device("cpu")) == []
