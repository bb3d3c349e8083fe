"""A traced job through the public door: ``byteps run --timeline``, then merge and summary."""

from __future__ import annotations

import json
import signal
import sys
import textwrap
from pathlib import Path

import pytest

from tests.unit.timelines import described, load, of

from .jobs import THROUGH_SERVERS, Job, run_byteps

STEPS = 6
TRAIN = f"""
    import os, signal, torch
    import byteps.torch as bps

    bps.init()
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.ReLU(), torch.nn.Linear(300, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    for step in range({STEPS}):
        optimizer.zero_grad()
        model(torch.ones(4, 300) * bps.rank()).square().mean().backward()
        optimizer.step()
    AT_END
    print("trained", flush=True)
    bps.shutdown()
"""
IN_ORDER = "pass"
KILLED = """bps.barrier()
    import time; time.sleep(0.6)  # workload
    os.kill(os.getpid(), signal.SIGKILL)"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return _write(tmp_path, IN_ORDER)


def _write(folder: Path, at_end: str) -> Path:
    path = folder / "train.py"
    path.write_text(textwrap.dedent(TRAIN.replace("AT_END", at_end)))
    return path


def _byteps(*words: object) -> tuple[int, str, str]:
    return Job([sys.executable, "-m", "byteps", *map(str, words)]).finish()


def _run(program: Path, *options: str, environment: dict[str, str] | None = None) -> tuple[int, str, str]:
    words = ("run", "-np", "2", "--servers", "2", *options, str(program))
    return run_byteps(*words, environment={**THROUGH_SERVERS, **(environment or {})}).finish()


def test_a_traced_job_is_merged_and_summarised(tmp_path: Path, program: Path) -> None:
    code, output, errors = _run(program, "--timeline", str(tmp_path / "run.json.gz"))
    assert (code, output.count("trained"), errors) == (0, 2, "")
    files = sorted(tmp_path.glob("run.*"))
    assert [f.name for f in files] == [
        f"run.{who}.json.gz" for who in ("rank0", "rank1", "server0", "server1")
    ]
    assert {described(file)["processes"][0]["clock"] for file in files} == {"coordinator"}

    merged = tmp_path / "all.json.gz"
    code, output, errors = _byteps("trace", "merge", *files, "-o", merged)
    assert (code, output) == (0, ""), errors
    assert "note" not in errors
    events = load(merged)
    assert len(of(events, cat="step")) == len(of(events, cat="updated")) == 2 * STEPS
    starts, steps, ends = ({e["id"] for e in of(events, ph=phase)} for phase in "stf")
    assert starts == steps == ends
    assert starts

    code, output, errors = _byteps("trace", "summary", merged)
    assert (code, errors) == (0, "")
    assert "2 ranks, 2 servers, 5 steps" in output
    assert "0.weight" in output
    code, output, _ = _byteps("trace", "summary", merged, "--json")
    summary = json.loads(output)
    assert code == 0
    assert summary["marked"]
    for rank in summary["ranks"]:
        assert 0 < rank["exposed_us"] < rank["step_us"]


def test_bytepss_own_variables_name_folder_and_steps(tmp_path: Path, program: Path) -> None:
    folder = tmp_path / "made"
    environment = {
        "BYTEPS_TRACE_ON": "1",
        "BYTEPS_TRACE_DIR": str(folder),
        "BYTEPS_TRACE_START_STEP": "2",
        "BYTEPS_TRACE_END_STEP": "3",
    }
    code, _, errors = _run(program, environment=environment)
    assert code == 0
    assert f"{folder}, did not exist and was made" in errors
    events = load(folder / "timeline.rank0.json.gz")
    assert [event["name"] for event in of(events, cat="step")] == ["step 2", "step 3"]
    rounds = {event["args"]["round"] for event in events if "round" in event.get("args", {})}
    assert rounds == {2, 3}


def test_horovods_variable_names_the_file(tmp_path: Path, program: Path) -> None:
    code, _, _ = _run(program, environment={"HOROVOD_TIMELINE": str(tmp_path / "hvd.json")})
    assert code == 0
    assert of(load(tmp_path / "hvd.rank1.json.gz"), ph="s")


def test_what_a_killed_process_recorded_is_not_lost(tmp_path: Path) -> None:
    program = _write(tmp_path, KILLED)
    code, _, _ = _run(program, "--timeline", str(tmp_path / "run.json.gz"))
    assert code == 128 + signal.SIGKILL
    left = tmp_path / "run.rank0.json.gz.part"
    code, _, errors = _byteps("trace", "merge", left, "-o", tmp_path / "all.json.gz")
    assert code == 0
    assert "note: " in errors
    assert of(load(tmp_path / "all.json.gz"), ph="e", name="returned")


def test_a_disk_that_fills_up_does_not_disturb_training(tmp_path: Path) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))"
    program = _write(tmp_path, IN_ORDER)
    program.write_text(program.read_text().replace("bps.init()", f"bps.init(); {limit}"))
    code, output, errors = _run(program, "--timeline", str(tmp_path / "run.json.gz"))
    assert (code, output.count("trained")) == (0, 2)
    assert errors.count("the training does not") == 2
    assert "File too large; make room there" in errors


def test_a_file_that_is_no_timeline_is_named(tmp_path: Path, program: Path) -> None:
    code, _, errors = _byteps("trace", "merge", program, "-o", tmp_path / "all.json.gz")
    assert code == 1
    assert "train.py is no timeline of byteps" in errors
    assert not (tmp_path / "all.json.gz").exists()
