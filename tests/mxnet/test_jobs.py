"""byteps.mxnet over real processes: lost peers, forks, other engines, the store by its name, the example."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.house.tree import ROOT
from tests.process.faults import PEER_TIMEOUT_S, SLACK_S, FaultyJob
from tests.process.jobs import run_byteps

SCRIPT = str(Path(__file__).with_name("ranks.py"))
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize(
    ("program", "environment"),
    [("store", {}), ("synchronous", {"MXNET_ENGINE_TYPE": "NaiveEngine"}), ("fork", {}), ("horovod", {})],
)
def test_ranks_agree(program: str, environment: dict[str, str]) -> None:
    options = ["--as-horovod"] if program == "horovod" else []
    words = ("run", "-np", "2", "--servers", "1", *options, sys.executable, SCRIPT, program)
    code, output, errors = run_byteps(*words, environment={**ONE_THREAD, **environment}).finish()
    assert code == 0, errors
    assert output.count("done") == 2
    assert "Exception ignored" not in errors


def test_a_killed_peer_gives_one_error() -> None:
    with FaultyJob() as job:
        job.start_roles()
        for rank in range(2):
            job.start_worker(rank, SCRIPT, "train")
        job.await_text("ready")
        since_s = job.send("worker 1", "kill")
        survivor = job.processes["worker 0"].ended(since_s + PEER_TIMEOUT_S + SLACK_S + 5)
        assert survivor is not None, "still running"
        assert survivor.at_s - since_s < PEER_TIMEOUT_S + SLACK_S
        (complaint,) = survivor.complaints
        assert re.match(r"byteps\.errors\.PeerLost: .*worker rank 1", complaint), survivor
        assert survivor.code == 1


@pytest.mark.slow
@pytest.mark.timeout(110)
def test_a_cnn_learns_mnist_on_two_workers() -> None:
    script = str(ROOT / "examples" / "mnist_mxnet.py")
    words = ("run", "-np", "2", "--servers", "2", sys.executable, script, "--epochs", "3")
    code, output, errors = run_byteps(*words, environment=ONE_THREAD).finish(100.0)
    assert code == 0, errors
    found = re.findall(r"held-out accuracy: ([\d.]+) %", output)
    assert float(found[-1]) >= 93.0, output
