"""Hosts on which something is missing: each gives a clear error, or a fallback that is stated."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from .jobs import Job, run_byteps

PYTHON = sys.executable
BYTEPS = (PYTHON, "-m", "byteps")

EXCHANGE = """
import logging
import numpy as np
from byteps.config import resolve
from byteps.joining import connect
from byteps.logs import set_up_logging
from byteps.session import Buffer
from byteps.wire import TensorSpec

config = resolve().config
set_up_logging(config)
session = connect(config)
logging.getLogger("byteps").warning("a line of the log")
data = np.ones(300_000, np.float32)
buffer = Buffer(data.ctypes.data, data.nbytes, data)
for _ in range(3):
    session.submit(TensorSpec("x", 1, data.shape, 1), buffer, buffer).wait()
session.shutdown()
print(f"mean {data.mean()}\\n", end="", flush=True)
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    """A program whose ranks exchange a tensor and log a line."""
    path = tmp_path / "exchange.py"
    path.write_text(EXCHANGE)
    return str(path)


def run(command: Sequence[str], **environment: str) -> tuple[int, str, str]:
    """Run a command to its end; nothing may be left."""
    job = Job(command, environment)
    result = job.finish()
    assert not job.offspring()
    return result


def shell(line: str, **environment: str) -> tuple[int, str, str]:
    """Run a line of shell."""
    return run(["sh", "-c", line], **environment)


def job_line(script: str, workers: int = 2) -> str:
    return shlex.join([*BYTEPS, "run", "-np", str(workers), "--servers", "2", script])


def check_good(result: tuple[int, str, str], workers: int = 2) -> None:
    """The job has done its work."""
    code, output, errors = result
    assert code == 0, errors
    assert sorted(output.splitlines()) == [f"[worker {rank}] mean 1.0" for rank in range(workers)]


def check_refused(result: tuple[int, str, str], *words: str, code: int = 1) -> None:
    """One line that says what is wrong and what to do, and no traceback."""
    returned, _, errors = result
    assert returned == code, errors
    assert "Traceback" not in errors
    for word in words:
        assert word in errors


# No space


def test_training_goes_on_when_its_output_cannot_be_written(script: str) -> None:
    code, output, errors = shell(f"{job_line(script)} >/dev/full")
    assert (code, output) == (0, "")
    assert "byteps run: cannot write output: No space left on device; the job goes on" in errors
    assert re.search(r"byteps run: \d+ bytes of output were lost", errors)


def test_training_goes_on_when_no_log_can_be_written(script: str) -> None:
    check_good(shell(f"{job_line(script)} 2>/dev/full"))


def test_workers_go_on_when_their_own_log_cannot_be_written(script: str) -> None:
    words = shlex.join([*BYTEPS, "run", "-np", "2", "--servers", "2", "--"])
    check_good(shell(f"{words} sh -c 'exec {PYTHON} {script} 2>/dev/full'"))


@pytest.mark.parametrize("words", ["config", "config --json", "doctor --local", "coordinator"])
def test_a_full_disk_is_one_line(words: str) -> None:
    result = shell(f"{shlex.join(BYTEPS)} {words} >/dev/full")
    check_refused(result, f"byteps {words.split()[0]}: error: ", "No space left on device; make room")
    assert len(result[2].splitlines()) == 1


def test_a_log_file_that_may_not_grow_any_more_ends_no_job(tmp_path: Path, script: str) -> None:
    """As with a full disk, what was written before is kept."""
    log = tmp_path / "log"
    limit = "import os, resource, signal, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)); "
    ignore = "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    noisy = "for number in range(200):\n    print('line', number, 'x' * 50)\n"
    Path(script).write_text(noisy + EXCHANGE)
    command = [PYTHON, "-c", limit + ignore, *BYTEPS, "run", "-np", "2", script]
    code, _, errors = shell(f"{shlex.join(command)} >{log}")
    assert code == 0, errors
    assert log.stat().st_size == 4096
    assert "the job goes on" in errors


# Paths


@pytest.mark.parametrize("words", [["config"], ["doctor", "--local"], ["run", "-np", "2", "true"]])
def test_a_settings_file_that_cannot_be_read_is_named(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "byteps.toml").mkdir()
    job = Job([*BYTEPS, *words], cwd=tmp_path)
    code, output, errors = job.finish()
    assert code == (1 if words[0] == "doctor" else 2)
    assert "cannot read byteps.toml: Is a directory" in output + errors
    assert "Traceback" not in errors


@pytest.mark.parametrize("name", ["auth_token_file", "tls"])
def test_a_secret_that_cannot_be_read_is_named(name: str, tmp_path: Path) -> None:
    missing = str(tmp_path / "none")
    fields = ("auth_token_file",) if name == "auth_token_file" else ("tls_cert", "tls_key", "tls_ca")
    options = [f"--{field.replace('_', '-')}={missing}" for field in fields]
    check_refused(run([*BYTEPS, "coordinator", *options]), missing, "No such file", code=2)


def test_nothing_is_written_to_disk(script: str, tmp_path: Path) -> None:
    """No home, no temporary folder, and a current folder that is gone: a job needs none of them."""
    nowhere = str(tmp_path / "none")
    folder = tmp_path / "here"
    folder.mkdir()
    line = f"cd {folder} && rmdir {folder} && {job_line(script)}"
    check_good(shell(line, HOME=nowhere, TMPDIR=nowhere, XDG_CACHE_HOME=nowhere, PYTHONDONTWRITEBYTECODE="1"))


# Descriptors


def test_64_open_files_do_for_a_job(script: str) -> None:
    check_good(shell(f"ulimit -n 64; {job_line(script, workers=4)}"), workers=4)


@pytest.mark.parametrize("limit", [16, 24, 32])
def test_too_few_open_files_are_said(limit: int, script: str) -> None:
    result = shell(f"ulimit -n {limit}; {job_line(script)}")
    check_refused(result, "Too many open files; raise the limit of open files (ulimit -n)", code=result[0])
    assert result[0] != 0


LEAST_FILES = 12


@pytest.mark.parametrize("limit", range(10, 17))
def test_a_server_without_descriptors_ends(limit: int, script: str) -> None:
    """Wherever it runs out of them, the job ends soon and says why."""
    with _coordinator() as shared:
        server = Job(["sh", "-c", f"ulimit -n {limit}; exec {shlex.join([*BYTEPS, 'server'])}"], shared)
        ranks = [Job([PYTHON, script], {**shared, "BYTEPS_RANK": rank, "BYTEPS_SIZE": "2"}) for rank in "01"]
        code, _, errors = server.finish()
        codes = {rank.finish()[0] for rank in ranks}
    # The highest of these limits may do where Python itself needs fewer.
    assert codes == ({0} if code == 0 else {1})
    assert ("Too many open files" in errors) == (code != 0)
    assert code != 0 or limit > LEAST_FILES
    assert "Traceback" not in errors


@contextmanager
def _coordinator(*words: str) -> Iterator[dict[str, str]]:
    """A coordinator; gives the environment of its job."""
    token = {"BYTEPS_AUTH_TOKEN": "x" * 32, "BYTEPS_JOIN_TIMEOUT_S": "3"}
    job = run_byteps("coordinator", "--num-workers", "2", "--num-servers", "1", *words, environment=token)
    assert job.popen.stdout is not None
    try:
        yield {**token, "BYTEPS_COORDINATOR": job.popen.stdout.readline().split("=")[1].strip()}
    finally:
        job.finish()


# Network


def _in_namespace(line: str) -> tuple[int, str, str]:
    """Run a line of shell in a network namespace whose only address is ``::1``."""
    if os.geteuid() != 0:
        raise RuntimeError("this test makes a network namespace: run it as root")
    prepare = "ip link set lo up && ip addr del 127.0.0.1/8 dev lo"
    return run(["unshare", "--net", "sh", "-c", f"{prepare} && {line}"])


def test_a_host_with_ipv6_only(script: str) -> None:
    check_good(_in_namespace(job_line(script)))
    code, output, _ = _in_namespace(shlex.join([*BYTEPS, "doctor", "--np", "2", "--servers", "1"]))
    assert code == 0
    assert "a server here listens on ::1" in output


def test_a_host_with_ipv6_only_under_torchrun(script: str) -> None:
    """The store has its own address; what byteps starts finds ``::1`` by itself."""
    text = EXCHANGE.replace("config = resolve().config", CONFIG_BY_TORCHRUN)
    Path(script).write_text(text)
    command = [PYTHON, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
    line = shlex.join([*command, "--rdzv-endpoint", "[::1]:0", "--local-addr", "::1", script])
    code, output, errors = _in_namespace(f"OMP_NUM_THREADS=1 {line}")
    assert code == 0, errors
    assert output.splitlines() == ["mean 1.0"] * 2


CONFIG_BY_TORCHRUN = """
from byteps.torch.launching.torchrun import discover
config, undo = discover(resolve().config)
"""


def test_a_host_without_any_address_is_waited_for_aloud(script: str) -> None:
    """The loopback interface is down: nobody is reached, which is said, and given up in time."""
    line = f"BYTEPS_JOIN_TIMEOUT_S=1 BYTEPS_STALL_WARNING_S=0.3 {job_line(script)}"
    code, _, errors = run(["unshare", "--net", "sh", "-c", line])
    assert code == 1
    assert re.search(r"cannot connect to 127\.0\.0\.1:\d+: \[Errno 101\] Network is unreachable", errors)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ([*BYTEPS, "server"], ["no route to no-such-host.invalid", "check the coordinator's address"]),
        ([*BYTEPS, "doctor"], []),
    ],
    ids=["server", "doctor"],
)
def test_a_coordinator_whose_name_does_not_resolve(command: list[str], words: list[str]) -> None:
    result = run(command, BYTEPS_COORDINATOR="no-such-host.invalid:4000", BYTEPS_JOIN_TIMEOUT_S="0.5")
    check_refused(result, *words, code=2 if "server" in command else 1)
    assert "no-such-host.invalid" in result[1] + result[2]


def test_a_worker_waits_for_a_name_that_may_still_come(script: str) -> None:
    """Names of pods do; the log says what is waited for, and the error in the end what to look at."""
    job = {"BYTEPS_COORDINATOR": "no-such-host.invalid:4000", "BYTEPS_SIZE": "2", "BYTEPS_RANK": "0"}
    limits = {"BYTEPS_JOIN_TIMEOUT_S": "1", "BYTEPS_STALL_WARNING_S": "0.2"}
    code, _, errors = run([PYTHON, script], **job, **limits)
    assert code == 1
    assert "waiting for the coordinator, 0 s so far: cannot connect to no-such-host.invalid:4000" in errors
    assert "JoinError: cannot connect to no-such-host.invalid:4000" in errors
    assert "is BYTEPS_COORDINATOR right on this host?" in errors


def test_a_host_to_listen_on_that_does_not_resolve() -> None:
    options = ("--bind-host", "no-such-host.invalid", "--insecure")
    check_refused(run([*BYTEPS, "coordinator", *options]), "cannot listen on no-such-host.invalid", code=2)


@pytest.mark.parametrize("command", ["coordinator", "run", "bpslaunch"])
def test_a_port_that_is_taken_is_said(command: str, script: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        if command == "run":
            result = run([*BYTEPS, "run", "-np", "2", "--port", port, script])
        elif command == "coordinator":
            result = run([*BYTEPS, "coordinator", "--port", port])
        else:
            root = {"DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": port, "DMLC_ROLE": "scheduler"}
            code = "import sys; from byteps.launch.bpslaunch import main; sys.exit(main([]))"
            result = run([PYTHON, "-c", code], **root, DMLC_NUM_WORKER="2", DMLC_NUM_SERVER="1")
    check_refused(
        result,
        f"cannot listen on 127.0.0.1:{port}: Address already in use",
        "a free port",
        code=1 if command == "run" else 2,
    )


# /proc


def _without_proc(line: str) -> tuple[int, str, str]:
    """Run a line of shell where /proc is an empty folder."""
    if os.geteuid() != 0:
        raise RuntimeError("this test hides /proc in a mount namespace: run it as root")
    command = ["unshare", "--mount", "sh", "-c", f"mount -t tmpfs none /proc && {line}"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    return ended.returncode, ended.stdout, ended.stderr


def test_proc_is_not_needed(script: str) -> None:
    check_good(_without_proc(job_line(script)))


def test_the_doctor_works_without_proc() -> None:
    code, output, errors = _without_proc(shlex.join([*BYTEPS, "doctor", "--np", "2", "--interface", "lo"]))
    assert (code, errors) == (0, "")
    assert "worker 1 -> server 1" in output
