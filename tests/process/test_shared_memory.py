"""Jobs whose workers and servers share memory, cannot share it, or must not."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from .hosts import TwoHosts
from .jobs import Job
from .test_bad_environment import BYTEPS, EXCHANGE, check_good, run, shell

SMALL_FILES = "ulimit -f 512"
"""In a shell, allows no file or memory of more than 512 KiB or 256 KiB, as the shell counts."""


@pytest.fixture
def script(tmp_path: Path) -> str:
    """A program whose ranks exchange a tensor."""
    path = tmp_path / "exchange.py"
    path.write_text(EXCHANGE)
    return str(path)


def job_words(script: str, *options: str, workers: int = 2) -> list[str]:
    return [*BYTEPS, "run", "-np", str(workers), "--servers", "1", "--log-level", "info", *options, script]


def transports(errors: str) -> list[str]:
    """By what each worker says that it reaches its server, in the order of the workers."""
    found = re.findall(r"worker (\d+) reaches server \d+ by (\w+)", errors)
    return [transport for _, transport in sorted(found)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [((), "shm"), (("--transport", "shm"), "shm"), (("--transport", "tcp"), "tcp")],
    ids=["by itself", "shm", "tcp"],
)
def test_workers_share_memory_with_a_server_of_their_host(
    script: str, options: Sequence[str], expected: str
) -> None:
    result = run(job_words(script, *options))
    check_good(result)
    assert transports(result[2]) == [expected] * 2


def test_the_old_switch_of_shared_memory_is_understood(script: str) -> None:
    result = run(job_words(script), BYTEPS_ENABLE_IPC="0")
    check_good(result)
    assert transports(result[2]) == ["tcp"] * 2


def test_without_memory_they_go_on_by_tcp_and_say_so_once(script: str) -> None:
    result = shell(f"{SMALL_FILES}; {shlex.join(job_words(script, '--connections', '3'))}")
    check_good(result)
    assert set(transports(result[2])) == {"tcp"}
    said = re.findall(r"WARNING .*worker (\d) and server 0 .* go through TCP: .*File too large", result[2])
    assert sorted(said) == ["0", "1"]


def test_memory_that_is_asked_for_and_cannot_be_had_is_an_error(script: str) -> None:
    code, _, errors = shell(f"{SMALL_FILES}; {shlex.join(job_words(script, '--transport', 'shm'))}")
    assert code == 1
    assert re.search(
        r"HandshakeError: .*they cannot share memory, .*File too large.*BYTEPS_TRANSPORT=auto", errors
    )


def test_settings_that_contradict_each_other_name_both(script: str) -> None:
    program = ["sh", "-c", f"BYTEPS_TRANSPORT=shm exec {sys.executable} {script}"]
    code, _, errors = run(
        [*BYTEPS, "run", "-np", "2", "--servers", "1", "--transport", "tcp", "--", *program]
    )
    assert code == 1
    assert re.search(r"HandshakeError: .*this server has transport = tcp, the worker shm; give all", errors)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make network namespaces")
@pytest.mark.parametrize("transport", ["auto", "shm"])
def test_hosts_that_are_emulated_on_one_machine_share_nothing(script: str, transport: str) -> None:
    """Each has a server of its own beside it, which both workers use."""
    shared = {"BYTEPS_AUTH_TOKEN": "secret", "BYTEPS_TRANSPORT": transport, "BYTEPS_LOG_LEVEL": "info"}
    with TwoHosts() as hosts:
        counts = ["--num-workers", "2", "--num-servers", "2", "--bind-host", hosts.addresses[0]]
        jobs = [Job(hosts.on(0, [*BYTEPS, "coordinator", *counts]), shared)]
        try:
            shared["BYTEPS_COORDINATOR"] = _address(jobs[0])
            jobs += [Job(hosts.on(node, [*BYTEPS, "server"]), shared) for node in range(2)]
            worker = [sys.executable, script]
            jobs += [Job(hosts.on(node, worker), {**shared, "BYTEPS_SIZE": "2"}) for node in range(2)]
            workers = [job.finish() for job in jobs[-2:]]
        finally:
            for job in jobs:
                job.kill()
                if job.popen.stdout is not None and not job.popen.stdout.closed:
                    job.finish()
    said = "\n".join(errors for _, _, errors in workers)
    if transport == "auto":
        assert [code for code, _, _ in workers] == [0, 0], said
        assert sorted(transports(said)) == ["shm", "shm", "tcp", "tcp"]
        assert "could share memory" not in said
    else:
        assert [code for code, _, _ in workers] == [1, 1], said
        assert "they are on different hosts, or in different network namespaces" in said


def _address(coordinator: Job) -> str:
    """What the coordinator prints first."""
    assert coordinator.popen.stdout is not None
    found = re.search(r"BYTEPS_COORDINATOR=(\S+)", coordinator.popen.stdout.readline())
    assert found is not None
    return found[1]
