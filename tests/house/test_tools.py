"""mypy and ruff, run as the developer runs them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from .tree import PYTHON_FOLDERS, ROOT

COMMANDS = {
    "mypy": ("mypy", "--strict", *PYTHON_FOLDERS),
    "ruff check": ("ruff", "check", *PYTHON_FOLDERS),
    "ruff format": ("ruff", "format", "--check", *PYTHON_FOLDERS),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("tool", COMMANDS)
def test_tool_finds_nothing(tool: str) -> None:
    command = [sys.executable, "-m", *COMMANDS[tool]]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert result.returncode == 0, f"`make lint` shows the same:\n{result.stdout}{result.stderr}"
