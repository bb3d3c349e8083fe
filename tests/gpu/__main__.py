"""Runs the checks in a job of two workers on one GPU, in less than four minutes.

Exit code 0: all hold. 1: one does not. 77, with a sentence: not run, as there is no GPU.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time

import torch

NOT_RUN_EXIT_CODE = 77
LIMIT_S = 230.0


def main() -> int:
    """Run the checks, or say why not."""
    if not torch.cuda.is_available():
        print(f"GPU checks: not run, torch {torch.__version__} finds no CUDA device here")
        return NOT_RUN_EXIT_CODE
    end_s = time.monotonic() + LIMIT_S
    code = _run("tests.gpu.checks", end_s)
    if torch.cuda.device_count() < 2:
        print("GPU checks: sums within a node by NCCL not run, they need two GPUs")
        return code
    with tempfile.TemporaryDirectory() as folder:
        return _run("tests.gpu.nccl", end_s, f"{folder}/store") or code


def _run(module: str, end_s: float, *arguments: str) -> int:
    """Run a module in a job of two workers; its exit code."""
    job = [sys.executable, "-m", "byteps", "run", "-np", "2", "--servers", "2", "--"]
    try:
        return subprocess.run(
            [*job, sys.executable, "-m", module, *arguments], timeout=end_s - time.monotonic(), check=False
        ).returncode
    except subprocess.TimeoutExpired:
        print(f"GPU checks: {module} failed, not done after {LIMIT_S:g} s together")
        return 1


if __name__ == "__main__":
    sys.exit(main())
