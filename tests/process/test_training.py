"""Training by several processes equals training by one, however the job was started."""

from __future__ import annotations

import json
import math
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.process import train
from tests.process.hosts import TwoHosts
from tests.process.jobs import Job, run_byteps

SCRIPT = str(Path(train.__file__))
STEPS = 50
RELATIVE = 1e-12


@pytest.fixture(scope="module")
def reference() -> Iterator[tuple[list[float], list[float]]]:
    """Losses and parameters of one process, in float64."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    losses, model = train.train_one_process(torch.float64, STEPS)
    yield losses, [float.fromhex(value) for value in train.values(model)]
    torch.set_num_threads(threads)


def results(folder: Path, size: int) -> list[dict[str, Any]]:
    """What each rank wrote."""
    found = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(size)]
    assert [one["size"] for one in found] == [size] * size
    return found


def succeed(*jobs: Job) -> None:
    """Wait for the jobs, which must all end well."""
    with ExitStack() as stack:
        for job in jobs:
            stack.callback(job.kill)
        ends = [job.finish() for job in jobs]
        for code, output, errors in ends:
            assert code == 0, f"exit code {code}\n{output}\n{errors}"
        for job in jobs:
            assert job.offspring() == []


def assert_equals(folder: Path, size: int, reference: tuple[list[float], list[float]]) -> None:
    """Each rank has the reference's losses and parameters."""
    losses, parameters = reference
    for one in results(folder, size):
        mine = [float.fromhex(value) for value in one["values"]]
        worst = max(abs(a - b) / max(abs(b), 1e-3) for a, b in zip(mine, parameters, strict=True))
        assert worst <= RELATIVE
        assert all(math.isclose(a, b, rel_tol=RELATIVE) for a, b in zip(one["losses"], losses, strict=True))


def words(folder: Path, *more: str) -> list[str]:
    """The script and its arguments."""
    return [SCRIPT, "--out", str(folder), "--steps", str(STEPS), *more]


@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_equals_one_process(
    size: int, servers: int, reference: tuple[list[float], list[float]], tmp_path: Path
) -> None:
    succeed(run_byteps("run", "-np", str(size), "--servers", str(servers), sys.executable, *words(tmp_path)))
    assert_equals(tmp_path, size, reference)


def test_crossing_the_barrier_equals_one_process(
    reference: tuple[list[float], list[float]], tmp_path: Path
) -> None:
    script = words(tmp_path, "--cross")
    succeed(run_byteps("run", "-np", "2", "--servers", "2", sys.executable, *script))
    assert_equals(tmp_path, 2, reference)


@pytest.mark.parametrize("more", [[], ["--cross"]], ids=["", "crossing"])
@pytest.mark.parametrize("size", [2, 4])
def test_deterministic_is_bitwise_the_sum_in_rank_order(size: int, more: list[str], tmp_path: Path) -> None:
    options = ["--dtype", "float32", "--deterministic", *more]
    succeed(run_byteps("run", "-np", str(size), "--servers", "2", sys.executable, *words(tmp_path, *options)))
    expected = train.values(train.train_in_rank_order(torch.float32, STEPS, size))
    for one in results(tmp_path, size):
        assert one["values"] == expected


def torchrun(*options: str) -> list[str]:
    """The command of one torchrun agent."""
    return [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", *options]


def free_port(host: str = "127.0.0.1") -> str:
    """A port that is free now: torchrun agents must be told one."""
    with socket.create_server((host, 0)) as server:
        return str(server.getsockname()[1])


def agents(address: str, port: str, folder: Path) -> Sequence[list[str]]:
    """Two torchrun agents of one job."""
    return [
        torchrun("--node-rank", str(node), "--master-addr", address, "--master-port", port, *words(folder))
        for node in range(2)
    ]


def test_torchrun_on_loopback(reference: tuple[list[float], list[float]], tmp_path: Path) -> None:
    succeed(*[Job(command) for command in agents("127.0.0.1", free_port(), tmp_path)])
    assert_equals(tmp_path, 2, reference)


def test_torchrun_with_two_workers_on_one_node(
    reference: tuple[list[float], list[float]], tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    succeed(Job([*command, *words(tmp_path)]))
    assert_equals(tmp_path, 2, reference)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make network namespaces")
def test_torchrun_on_two_hosts(reference: tuple[list[float], list[float]], tmp_path: Path) -> None:
    with TwoHosts() as hosts:
        commands = agents(hosts.addresses[0], "29400", tmp_path)
        succeed(*[Job(hosts.on(node, command)) for node, command in enumerate(commands)])
    assert_equals(tmp_path, 2, reference)


def test_bpslaunch_with_five_processes(reference: tuple[list[float], list[float]], tmp_path: Path) -> None:
    shared = {
        "DMLC_NUM_WORKER": "2",
        "DMLC_NUM_SERVER": "2",
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": free_port(),
    }
    launch = [str(Path(sys.executable).with_name("bpslaunch"))]
    roles = [Job(launch, {**shared, "DMLC_ROLE": role}) for role in ("scheduler", "server", "server")]
    workers = [
        Job(
            [*launch, sys.executable, *words(tmp_path)],
            {**shared, "DMLC_ROLE": "worker", "DMLC_WORKER_ID": str(number)},
        )
        for number in range(2)
    ]
    succeed(*roles, *workers)
    assert_equals(tmp_path, 2, reference)
