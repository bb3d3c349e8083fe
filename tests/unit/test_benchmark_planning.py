"""``python -m benchmarks.planning``: predictions beside emulated results."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.planning import Pair, compare, emulated, out_of_order, predict
from byteps.planner import bounds
from byteps.planner.profile import shipped

ROOT = Path(__file__).resolve().parents[2]
ROW = "1 vgg16 332 ms, 440 Mbit/s"
# What the closed forms give for the row, in seconds: with four servers, and with none.
LIMITS = {1.0: 0.332, 1.5: 0.497}
WAITING = {"cross": "plain", "cross, colocated": "plain, colocated", "allreduce-cross": "allreduce"}


def line(system: str, time_ms: float) -> dict[str, Any]:
    return {"row": ROW, "system": system, "ms per step": f"{time_ms:.0f}"}


@pytest.mark.parametrize(
    ("system", "share"), [("cross", 1.0), ("cross, colocated", 1.5), ("allreduce-cross", 1.5)]
)
def test_what_crosses_the_barrier_is_nearer_to_its_limit_than_what_waits(system: str, share: float) -> None:
    crossing, waiting = predict(ROW, system), predict(ROW, WAITING[system])
    assert crossing is not None
    assert waiting is not None
    assert 0.999 * LIMITS[share] <= crossing <= 1.1 * LIMITS[share]
    assert waiting > crossing + 0.1


def test_what_waits_for_all_results_is_as_slow_as_first_come_first_served() -> None:
    profile = emulated(shipped("vgg16", 0.332))
    costs = bounds.costs(profile.layers, 1.5, 0.95 * 440e6 / 8)
    for system in ("ddp", "horovod", "plain, colocated", "allreduce"):
        assert predict(ROW, system) == pytest.approx(bounds.fifo_s(profile.layers, costs), rel=0.02)


def test_fewer_servers_are_slower() -> None:
    times = [predict(ROW, system) for system in ("cross", "cross, colocated, 2 servers", "cross, 2 servers")]
    assert times == sorted(times, key=lambda time_s: time_s or 0)
    assert None not in times


def test_unknown_systems_are_left_out_and_unknown_rows_refused() -> None:
    assert compare([line("serial-ps", 900)]) == []
    with pytest.raises(ValueError, match="is no row of"):
        predict("vgg16", "cross")


def test_order_counts_only_where_systems_differ() -> None:
    def pair(system: str, measured_s: float, predicted_s: float) -> Pair:
        return Pair(ROW, system, measured_s, predicted_s)

    assert out_of_order([pair("cross", 1.00, 1.1), pair("ddp", 1.04, 1.0)]) == []
    assert out_of_order([pair("cross", 1.00, 1.0), pair("ddp", 1.20, 1.1)]) == []
    assert out_of_order([pair("cross", 1.00, 1.1), pair("ddp", 1.20, 1.0)]) == ["row 1, cross and ddp"]


@pytest.mark.parametrize(("factor", "code"), [(1.01, 0), (1.2, 1)])
def test_the_command_judges(factor: float, code: int, tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    table = [line(system, 1e3 * factor * (predict(ROW, system) or 0)) for system in ("cross", "ddp")]
    file.write_text(json.dumps({"table": table}), encoding="utf-8")
    command = [sys.executable, "-m", "benchmarks.planning", str(file), "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == code, done.stderr
    report = json.loads(done.stdout)
    assert [entry["system"] for entry in report["table"]] == ["cross", "ddp"]
    assert report["rows"][0]["passed"] is (code == 0)
