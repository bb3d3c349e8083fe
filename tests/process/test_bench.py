"""``byteps bench`` as a user runs it: with a job of its own, and inside jobs that others start."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from .jobs import THROUGH_SERVERS, Job, run_byteps

QUICK = ("--sizes", "4K,100K", "--iterations", "3", "--warmup", "1")


def test_pushpull_in_a_job_of_its_own(tmp_path: Path) -> None:
    target = tmp_path / "report.json"
    job = run_byteps(
        *("bench", "pushpull", "--np", "2", "--servers", "2", *QUICK),
        *("--dtypes", "float32,bfloat16,int8", "--link-gbit", "1000", "--json", str(target)),
        environment=THROUGH_SERVERS,
    )
    code, output, errors = job.finish()
    assert code == 0, errors
    assert not job.offspring()
    lines = output.splitlines()
    assert lines[0] == "byteps bench pushpull: 2 workers, 2 servers"
    assert len([line for line in lines if "KiB" in line]) == 6
    assert "9 of 9: int8, 100.0 KiB" in errors
    report = json.loads(target.read_text())
    assert report["limit"] == {"gb_per_s": 125.0, "from": "--link-gbit 1000"}
    assert report["servers_beside_workers"] == 2
    assert [entry["dtype"] for entry in report["latency"]] == ["float32", "bfloat16", "int8"]
    for row in report["rows"]:
        assert 0 < row["median_s"] <= row["p95_s"] < 10
        assert row["gb_per_s"] == pytest.approx(row["bytes"] / row["median_s"] / 1e9)
        assert 1 <= row["wire_bytes"] / row["bytes"] < 1.2, "the tensor and the headers of its frames"
        assert 0 < row["share_of_limit"] < 1
        assert row["server_cpu_s_per_gb"] > 0


def test_a_single_worker_is_measured_with_its_server() -> None:
    code, output, errors = run_byteps("bench", "pushpull", "--np", "1", *QUICK, "--json").finish()
    assert code == 0, errors
    report = json.loads(output)
    assert (report["workers"], report["servers"]) == (1, 1)
    assert max(row["share_of_limit"] for row in report["rows"]) == 1
    assert report["limit"]["from"] == "the fastest row of this run"


def test_pushpull_in_place_of_the_script_under_byteps_run() -> None:
    bench = (sys.executable, "-m", "byteps", "bench", "pushpull", *QUICK)
    code, output, errors = run_byteps("run", "-np", "2", "--servers", "1", "--", *bench).finish()
    assert code == 0, errors
    lines = output.splitlines()
    assert lines[0] == "[worker 0] byteps bench pushpull: 2 workers, 1 server"
    assert all(line.startswith("[worker 0]") for line in lines), "rank 0 speaks for all"


def test_train_in_place_of_the_script_under_torchrun() -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = ("--model", "tiny", "--steps", "2", "--blocks", "2", "--json")
    job = Job([*torchrun, "-m", "byteps", "bench", "train", *words], {"OMP_NUM_THREADS": "1"})
    code, output, errors = job.finish()
    assert code == 0, errors
    report = json.loads(output)
    assert (report["workers"], report["servers"], report["batch_size"]) == (2, 1, 4)
    assert report["parameters"] == 11666
    samples = report["samples_per_s"]
    assert report["share"] == pytest.approx(samples["with"] / samples["without"])
    assert samples["with"] > 0


def test_an_unwritable_report_is_said_before_the_job(tmp_path: Path) -> None:
    target = tmp_path / "none" / "report.json"
    code, output, errors = run_byteps("bench", "pushpull", "--np", "2", "--json", str(target)).finish()
    assert (code, output) == (1, "")
    assert f"cannot write the report to {target}" in errors
    assert "1 of" not in errors
