"""``byteps profile`` on a script of the user's own, then ``byteps plan`` with what it has recorded."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from .jobs import Job
from .profiled import BACKWARD_S, FORWARD_S

SCRIPT = Path(__file__).with_name("profiled.py")
SIZES = [(8 + 1) * 16, (16 + 1) * 32, (32 + 1) * 4]


def profile(folder: Path, *words: str, options: tuple[str, ...] = ()) -> tuple[int, str, str]:
    """Record the script with some words; exit code, stdout and stderr."""
    command = [sys.executable, "-m", "byteps", "profile", "--steps", "4", *options]
    return Job([*command, "python", str(SCRIPT), *words], {"OMP_NUM_THREADS": "1"}, cwd=folder).finish()


def recorded(folder: Path) -> list[dict[str, Any]]:
    """The layers of the profile, the time between steps first."""
    content = json.loads((folder / "profile.json").read_text(encoding="utf-8"))
    layers: list[dict[str, Any]] = content["layers"]
    return layers


def test_a_profile_is_recorded_and_planned_with(tmp_path: Path) -> None:
    code, output, errors = profile(tmp_path)
    assert (code, errors) == (0, "")
    assert "profiled: 3 layers" in output
    assert "5 samples a step, recorded on cpu, median of 4 steps" in output
    between, *layers = recorded(tmp_path)
    assert between["tensor_bytes"] == []
    assert [layer["name"] for layer in layers] == ["0.inner", "2.inner", "3.inner"]
    assert [sum(layer["tensor_bytes"]) for layer in layers] == [4 * size for size in SIZES]
    for layer in layers:
        assert 0.99 * FORWARD_S <= layer["forward_s"] < 3 * FORWARD_S
        assert 0.99 * BACKWARD_S <= layer["backward_s"] < 3 * BACKWARD_S
    plan = [sys.executable, "-m", "byteps", "plan", "--profile", "profile.json", "--json"]
    job = Job([*plan, "--workers", "4", "--link-gbit", "0.001"], cwd=tmp_path)
    code, output, errors = job.finish()
    assert (code, errors) == (0, "")
    report = json.loads(output)
    assert report["model"]["compute_s"] == pytest.approx(
        sum(layer["forward_s"] + layer["backward_s"] for layer in [between, *layers])
    )
    assert report["choices"][0]["step_s"] > report["model"]["compute_s"]


def test_under_byteps_and_with_accumulation(tmp_path: Path) -> None:
    code, _, errors = profile(tmp_path, "byteps", "accumulate", options=("--batch-size", "10"))
    assert (code, errors) == (0, "")
    _, *layers = recorded(tmp_path)
    # What lies between the first and the last backward pass comes before any gradient is ready.
    whole_pass_s = 3 * (FORWARD_S + BACKWARD_S)
    assert layers[2]["backward_s"] >= 0.99 * (whole_pass_s + BACKWARD_S)
    assert layers[0]["backward_s"] < 3 * BACKWARD_S
    assert json.loads((tmp_path / "profile.json").read_text())["batch_size"] == 10


def test_a_failing_script_shows_its_own_traceback(tmp_path: Path) -> None:
    code, _, errors = profile(tmp_path, "fail")
    assert code == 1
    lines = errors.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert f'File "{SCRIPT}"' in lines[1]
    assert "ArithmeticError: out of luck" in errors
    assert "byteps/planner" not in errors
    assert not (tmp_path / "profile.json").exists()


def test_a_script_that_leaves_keeps_its_exit_code(tmp_path: Path) -> None:
    code, _, errors = profile(tmp_path, "leave")
    assert (code, errors) == (7, "byteps profile: the script ended with 7; nothing was recorded\n")


@pytest.mark.parametrize(
    ("word", "complaint"),
    [
        ("no-step", "no optimizer step was seen"),
        ("no-backward", "8 optimizer steps seen, but no backward pass"),
    ],
)
def test_a_script_that_does_not_train(word: str, complaint: str, tmp_path: Path) -> None:
    code, _, errors = profile(tmp_path, word)
    assert code == 1
    assert complaint in errors
    assert errors.count("\n") == 1
    assert not (tmp_path / "profile.json").exists()
