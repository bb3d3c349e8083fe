"""Workers that sum among themselves, as processes over gloo: equality with torch, and what goes wrong."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from .jobs import Job, run_byteps

PROGRAM = "tests.process.all_reduce"
PEER_TIMEOUT_S = 3


def run(what: str, ranks: int, store: Path, environment: Mapping[str, str] | None = None) -> Job:
    """Start a job of ``ranks`` workers."""
    words = ["-np", str(ranks), "--communicator", "allreduce", "--", sys.executable, "-m", PROGRAM, what]
    return run_byteps("run", *words, environment={"STORE": str(store / "store"), **(environment or {})})


@pytest.mark.parametrize("ranks", [2, 4])
def test_training_equals_distributed_data_parallel(ranks: int, tmp_path: Path) -> None:
    """Tied weights, two backward passes a step, parameters that only some ranks use: bitwise on two ranks."""
    code, output, errors = run("equal", ranks, tmp_path).finish()
    assert code == 0, errors
    assert output.count("equal") == ranks


@pytest.mark.parametrize("what", ["beside", "group_destroyed"])
def test_the_scripts_own_process_group_is_its_own_affair(what: str, tmp_path: Path) -> None:
    """It may be used meanwhile, and destroyed before byteps has been shut down."""
    code, output, errors = run(what, 2, tmp_path).finish()
    assert code == 0, errors
    assert output.count("equal") == 2


def test_a_process_group_of_other_ranks_is_refused(tmp_path: Path) -> None:
    code, _, errors = run("other_ranks", 2, tmp_path).finish()
    assert code != 0
    assert re.search(r"torch\.distributed says that this is rank 0 of 1, byteps that it is rank 1", errors)


def test_a_process_group_on_some_ranks_only_is_refused(tmp_path: Path) -> None:
    code, _, errors = run("some_have_a_group", 2, tmp_path).finish()
    assert code != 0
    said = "ConfigError: rank 0 has no process group and rank 1 has a process group of gloo; call torch"
    assert said in errors, errors


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_rank_is_named_and_parameters_stay(end: signal.Signals, tmp_path: Path) -> None:
    environment = {"END": str(int(end)), "BYTEPS_PEER_TIMEOUT_S": str(PEER_TIMEOUT_S)}
    code, output, errors = run("lost", 3, tmp_path, environment).finish()
    assert code != 0, errors
    blamed = re.findall(r"PeerLost untouched=True .*worker rank 1 \(pid \d+ on \S+\) was lost", output)
    assert len(blamed) == 2, output + errors


def test_a_rank_that_leaves_early_is_named(tmp_path: Path) -> None:
    code, output, errors = run("lost", 3, tmp_path, {"END": "leave"}).finish()
    assert code != 0, errors
    assert "PeerLeft untouched=True" in output, output + errors
    assert "rank 1 has shut down" in output


def test_ranks_that_disagree_on_the_communicator_are_named(tmp_path: Path) -> None:
    code, _, errors = run("disagree", 2, tmp_path).finish()
    assert code != 0
    sentence = r"worker rank \d \(.*\) has communicator=\S+, but worker rank \d \(.*\) has communicator=\S+"
    assert re.search(sentence, errors), errors


def test_servers_are_refused() -> None:
    words = ["run", "-np", "2", "--servers", "1", "--communicator", "allreduce", "true"]
    code, _, errors = run_byteps(*words).finish()
    assert code != 0
    assert "--servers 1 contradicts communicator = allreduce" in errors


def test_under_torchrun_with_nothing_set(tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    job = Job([*launcher, "-m", PROGRAM, "under_torchrun"], {"STORE": str(tmp_path / "store")})
    code, _, errors = job.finish()
    assert code == 0, errors
    assert [(tmp_path / f"store.{rank}").read_text(encoding="utf-8") for rank in range(2)] == ["equal"] * 2
