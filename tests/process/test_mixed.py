"""Servers with the workers and servers apart in one job: the bytes that each sums, by its own counters.

Loopback addresses stand for machines.
"""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from byteps.placement import mixed_weights

from .jobs import Job, dump, run_byteps

WORKERS = 3
MIB = 24
CLOSE = 0.03

PUSH_ONCE = f"""
import os
import signal
import torch
import byteps.torch as bps

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
bps.init()
result = bps.push_pull(torch.full(({MIB} << 18,), bps.rank() + 1.0), name="x", average=False)
assert torch.all(result == sum(range(1, bps.size() + 1)))
os.write(1, b"done\\n")  # at once: ranks share a pipe
signal.sigwait([signal.SIGTERM])
bps.shutdown()
"""


@pytest.fixture
def shared(tmp_path: Path) -> dict[str, str]:
    """The environment of all processes."""
    token = tmp_path / "token"
    token.write_text("y" * 32)
    (tmp_path / "train.py").write_text(PUSH_ONCE)
    return {"BYTEPS_AUTH_TOKEN_FILE": str(token), "OMP_NUM_THREADS": "1", "BYTEPS_HIERARCHICAL": "off"}


def on(machine: int, shared: dict[str, str], **more: str) -> dict[str, str]:
    return {**shared, "BYTEPS_BIND_HOST": f"127.0.0.{machine + 1}", **more}


@contextmanager
def roles(count: int, apart: int, shared: dict[str, str], script: Path) -> Iterator[list[Job]]:
    """A job of ``count`` workers, each with a server on its machine, and ``apart`` more servers.

    Yields:
        The servers, those with the workers first. All workers have their results.
    """
    counts = ["--num-workers", str(count), "--num-servers", str(count + apart)]
    coordinator = run_byteps("coordinator", *counts, environment=on(0, shared))
    assert coordinator.popen.stdout is not None
    address = coordinator.popen.stdout.readline().split("=")[1].strip()
    jobs = [coordinator]
    servers = [
        run_byteps("server", "--coordinator", address, environment=on(machine, shared))
        for machine in range(count + apart)
    ]
    jobs += servers
    try:
        told = {"BYTEPS_COORDINATOR": address, "BYTEPS_SIZE": str(count)}
        workers = [
            Job([sys.executable, str(script)], on(rank, shared, BYTEPS_RANK=str(rank), **told))
            for rank in range(count)
        ]
        jobs += workers
        for worker in workers:
            assert worker.popen.stdout is not None
            assert worker.popen.stdout.readline() == "done\n", worker.finish()
        yield servers
        for worker in workers:
            worker.popen.send_signal(signal.SIGTERM)
        assert [job.finish()[0] for job in jobs] == [0] * len(jobs)
    finally:
        for job in jobs:
            job.kill()


def received_mib(server: Job, pid: int) -> float:
    """What a server has received so far."""
    text = dump(server, pid, "MiB received")
    (found,) = re.findall(r"([\d.]+) MiB received", text)
    return float(found)


def test_each_server_takes_its_share_by_the_formula(shared: dict[str, str], tmp_path: Path) -> None:
    apart = 1
    with roles(WORKERS, apart, shared, tmp_path / "train.py") as servers:
        found = [received_mib(server, server.popen.pid) / (WORKERS * MIB) for server in servers]
    assert found == pytest.approx(mixed_weights(WORKERS, apart), rel=CLOSE)


@pytest.mark.parametrize(
    "launcher",
    [
        ["byteps", "run", "-np", "2", "--servers", "2"],
        ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"],
    ],
    ids=["byteps run", "torchrun"],
)
def test_servers_elsewhere_join_what_a_launcher_starts(
    launcher: list[str], shared: dict[str, str], tmp_path: Path
) -> None:
    """And the weight that a server tells counts, whatever follows from where it is."""
    settings = on(0, shared, BYTEPS_EXTRA_SERVERS="1", BYTEPS_NUM_SERVERS="2")
    run = Job([sys.executable, "-m", *launcher, str(tmp_path / "train.py")], settings)
    assert run.popen.stderr is not None
    asks = re.compile(r"start 1 more server: BYTEPS_COORDINATOR=(\S+) byteps")
    asked = next(filter(None, map(asks.search, run.popen.stderr)))
    told = {"BYTEPS_COORDINATOR": asked[1], "BYTEPS_SERVER_WEIGHT": "2"}
    extra = run_byteps("server", environment=on(1, shared, **told))
    try:
        assert run.popen.stdout is not None
        for _ in range(2):
            assert run.popen.stdout.readline().endswith("done\n"), run.finish()
        assert received_mib(extra, extra.popen.pid) / (2 * MIB) == pytest.approx(0.5, rel=CLOSE)
    finally:
        run.popen.send_signal(signal.SIGTERM)
        run.finish()
        extra.kill()
        extra.finish()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--extra-servers", "1", "--bind-host", "127.0.0.1"], "needs a token"),
        (["--extra-servers", "1"], "extra_servers needs --interface or --bind-host"),
        (["--extra-servers", "1", "--communicator", "allreduce"], "contradicts communicator = allreduce"),
        (["--bind-host", "127.0.0.1"], "bind_host: a job on one machine talks over loopback"),
    ],
)
def test_servers_elsewhere_that_could_not_come_are_refused(words: list[str], said: str) -> None:
    code, _, errors = run_byteps("run", "-np", "2", *words, "true").finish()
    assert code == 2
    assert said in errors
