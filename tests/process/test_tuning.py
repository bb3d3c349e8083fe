"""``byteps run --tune``: training goes on as if nothing were tuned, and says afterwards what was tried."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from byteps.tuning import records
from tests.process import train
from tests.process.jobs import Job, run_byteps

SIZE, STEPS = 3, 100


def tuned(folder: Path, *more: str, settings: tuple[str, ...] = (), steps: int = STEPS) -> Job:
    """Training with two servers."""
    folder.mkdir(exist_ok=True)
    options = ["--tune", "--tune-results", str(folder / "trials"), "--tune-window", "2", *settings]
    script = [str(Path(train.__file__)), "--out", str(folder), "--steps", str(steps), "--dtype", "float32"]
    return run_byteps("run", "-np", str(SIZE), *options, sys.executable, *script, "--default-sizes", *more)


def finish(job: Job, folder: Path) -> tuple[list[dict[str, Any]], records.Found]:
    """What each rank wrote, and what was tried."""
    try:
        code, output, errors = job.finish()
    finally:
        job.kill()
    assert code == 0, f"exit code {code}\n{output}\n{errors}"
    (path,) = (folder / "trials").iterdir()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(SIZE)], records.load(path)


@pytest.fixture(scope="module")
def reference() -> list[str]:
    """Parameters of ranks whose gradients are added one by one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    values = train.values(train.train_in_rank_order(torch.float32, STEPS, SIZE))
    torch.set_num_threads(threads)
    return values


@pytest.mark.parametrize("crosses", [False, True])
def test_training_is_bitwise_what_it_is_without(crosses: bool, reference: list[str], tmp_path: Path) -> None:
    more = ["--deterministic", *(["--cross"] if crosses else [])]
    settings = ("--tune-search", "random", "--servers", "2")
    ranks, found = finish(tuned(tmp_path, *more, settings=settings), tmp_path)
    assert [one["values"] for one in ranks] == [reference] * SIZE
    assert len({line.knobs["partition_bytes"] for line in found.trials}) >= 4


def test_all_reduce_trains_on_and_the_trials_are_shown(tmp_path: Path) -> None:
    settings = ("--communicator", "allreduce", "--tune-search", "random")
    ranks, found = finish(tuned(tmp_path, settings=settings, steps=50), tmp_path)
    assert ranks[0]["values"] == ranks[1]["values"] == ranks[2]["values"]
    assert [line.kind for line in found.trials[:2]] == ["start", "closed form"]
    assert found.world == "3 workers, all-reduce"
    report = run_byteps("tune", "report", "--results", str(tmp_path / "trials"))
    code, output, _ = report.finish()
    assert code == 0
    assert "1 closed form" in output


def test_ranks_that_disagree_are_refused(tmp_path: Path) -> None:
    script = tmp_path / "differ.py"
    script.write_text(
        "import os, byteps.torch as bps\n"
        "bps.init(tune=os.environ['BYTEPS_RANK'] == '0', tune_search='random')\n"
    )
    job = run_byteps("run", "-np", "2", sys.executable, str(script))
    try:
        code, _, errors = job.finish()
    finally:
        job.kill()
    assert code != 0
    assert "tuning" in errors


@pytest.mark.parametrize("launched", [False, True])
def test_one_worker_is_told_that_there_is_nothing_to_tune(launched: bool, tmp_path: Path) -> None:
    script = tmp_path / "alone.py"
    script.write_text("import byteps.torch as bps\nbps.init(tune=True)\n")
    program = [sys.executable, str(script)]
    job = run_byteps("run", "-np", "1", *program) if launched else Job(program)
    try:
        code, _, errors = job.finish()
    finally:
        job.kill()
    assert code != 0
    assert "there is one worker" in errors
