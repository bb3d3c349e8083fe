"""Ways to start a job: restarts, failures, dedicated roles, tokens; the same losses, nothing left behind."""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from .jobs import Job, run_byteps, wait_gone

TRAIN = """
import os, sys, torch
import byteps.torch as bps

def train(steps=4):
    torch.manual_seed(1 + bps.rank())
    model = torch.nn.Linear(4, 1)
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
    )
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
    return losses

def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\\n")
    sys.stdout.flush()

bps.init()
say("LOSSES", bps.rank(), bps.size(), *train())
"""

RESTARTED = """
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and bps.rank() == 1:
    os.kill(os.getpid(), 9)
bps.push_pull(torch.ones(3), name="after")
say("RESTARTED", bps.rank())
"""

FAILED = """
import signal
if bps.rank() == 0:
    sys.exit(7)
try:
    bps.push_pull(torch.ones(3), name="x")
except RuntimeError as error:
    say("CAUGHT", type(error).__name__)
signal.pause()
"""

AGAIN = """
import torch.distributed as dist
bps.shutdown()
bps.init()
say("AGAIN", bps.rank(), *train())
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
say("GLOO", total.item())
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """The training script."""
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    return path


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What the script prints on two ranks, by ``byteps run``."""
    path = tmp_path_factory.mktemp("expected") / "train.py"
    path.write_text(TRAIN)
    output = _finish(run_byteps("run", "-np", "2", str(path)))
    found = _lines(output, "LOSSES")
    assert [line.split()[1:3] for line in found] == [["0", "2"], ["1", "2"]]
    return found


def free_port() -> str:
    """A port that nobody listens on, for programs that want to be given one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def _torchrun(*words: str) -> Job:
    command = [sys.executable, "-m", "torch.distributed.run", *words]
    return Job(command, {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"})


def _finish(*jobs: Job) -> str:
    """Wait for jobs that end well and leave nothing; what they printed."""
    ended = [job.finish() for job in jobs]
    assert [code for code, _, _ in ended] == [0] * len(jobs), ended
    assert not any("Traceback" in errors for _, _, errors in ended), ended
    assert all(wait_gone(pid) for job in jobs for pid in job.offspring())
    return "".join(output for _, output, _ in ended)


def _lines(output: str, word: str) -> list[str]:
    """The lines that begin with a word, sorted, without the launcher's prefix."""
    return sorted(re.findall(rf"^(?:\[worker \d\] )?({word} .*)$", output, re.MULTILINE))


def test_torchrun_restarts_both_nodes(script: Path, expected: list[str]) -> None:
    """A worker is killed. Only its node counts that as a restart, yet both ranks must meet again."""
    script.write_text(TRAIN + RESTARTED)
    rendezvous = ("--rdzv-backend", "c10d", "--rdzv-id", "job", "--rdzv-endpoint", f"localhost:{free_port()}")
    options = ("--nnodes", "2", "--max-restarts", "3", "--monitor-interval", "0.1")
    nodes = [
        _torchrun(*options, *rendezvous, "--rdzv-conf", f"is_host={host}", str(script)) for host in (1, 0)
    ]
    ended = [job.finish() for job in nodes]
    assert [code for code, _, _ in ended] == [0, 0], ended
    output = "".join(output for _, output, _ in ended)
    assert set(_lines(output, "LOSSES")) == set(expected)
    assert _lines(output, "RESTARTED") == ["RESTARTED 0", "RESTARTED 1"]
    assert all(wait_gone(pid) for job in nodes for pid in job.offspring())


def test_a_failure_under_torchrun_keeps_its_exit_code(script: Path) -> None:
    """Rank 0 is gone at once; its coordinator and server stay for the rank that is still a member."""
    script.write_text(TRAIN + FAILED)
    job = _torchrun("--standalone", "--nproc-per-node", "2", str(script))
    code, output, errors = job.finish()
    assert code == 1
    assert "CAUGHT PeerLeft" in output
    assert re.search(r"Root Cause.*rank +: 0 .*exitcode +: 7", errors, re.DOTALL), errors
    assert all(wait_gone(pid) for pid in job.offspring())


def test_ranks_without_an_agent_and_two_jobs_in_one_process(script: Path, expected: list[str]) -> None:
    """Rank 0 hosts the store itself, and shares it with ``init_process_group``."""
    script.write_text(TRAIN + AGAIN)
    job = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    ranks = [Job([sys.executable, str(script)], {**job, "RANK": str(rank)}) for rank in range(2)]
    output = _finish(*ranks)
    assert _lines(output, "LOSSES") == expected
    again = [line.replace("LOSSES", "AGAIN").split(" ") for line in expected]
    assert _lines(output, "AGAIN") == [" ".join([*words[:2], *words[3:]]) for words in again]
    assert _lines(output, "GLOO") == ["GLOO 2.0"] * 2


def _bpslaunch(role: str, words: Sequence[str], environment: dict[str, str]) -> Job:
    code = "import sys; from byteps.launch.bpslaunch import main; sys.exit(main())"
    return Job([sys.executable, "-c", code, *words], {**environment, "DMLC_ROLE": role})


def test_bpslaunch_on_one_machine(script: Path, expected: list[str]) -> None:
    job = {"DMLC_NUM_WORKER": "1", "NVIDIA_VISIBLE_DEVICES": "0,1"}
    assert _lines(_finish(_bpslaunch("worker", [str(script)], job)), "LOSSES") == expected


def test_dedicated_roles(script: Path, expected: list[str], tmp_path: Path) -> None:
    """``byteps coordinator`` prints the address with which everything else is started."""
    token = tmp_path / "token"
    token.write_text("y" * 32)
    shared = {"BYTEPS_AUTH_TOKEN_FILE": str(token)}
    coordinator = run_byteps("coordinator", "--num-workers", "2", "--num-servers", "1", environment=shared)
    assert coordinator.popen.stdout is not None
    address = coordinator.popen.stdout.readline().split("=")[1].strip()
    server = run_byteps("server", "--coordinator", address, environment=shared)
    job = {**shared, "BYTEPS_COORDINATOR": address, "BYTEPS_SIZE": "2"}
    ranks = [Job([sys.executable, str(script)], {**job, "BYTEPS_RANK": str(rank)}) for rank in range(2)]
    assert _lines(_finish(*ranks, server, coordinator), "LOSSES") == expected


def test_the_scripts_token_file_is_used_under_torchrun(script: Path, expected: list[str]) -> None:
    """A configured token wins over the fresh one, on both nodes."""
    token = script.with_name("token")
    token.write_text("z" * 32)
    os.chmod(token, 0o600)
    script.write_text(TRAIN.replace("bps.init()", f"bps.init(auth_token_file={str(token)!r})"))
    job = _torchrun("--standalone", "--nproc-per-node", "2", str(script))
    assert _lines(_finish(job), "LOSSES") == expected
