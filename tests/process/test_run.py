"""``byteps run`` as a user sees it: output, exit codes, Ctrl-C, and nothing left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from .jobs import Job, run_byteps, wait_gone

Script = Callable[[str], str]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """Writes a training program; its text knows ``rank`` and the modules os, signal and sys."""

    def write(text: str) -> str:
        path = tmp_path / "train.py"
        head = "import os, signal, sys\nrank = int(os.environ['BYTEPS_RANK'])\n"
        path.write_text(head + textwrap.dedent(text))
        return str(path)

    return write


def _until(job: Job, line: str) -> None:
    """Read the job's output up to a line that all its workers print."""
    assert job.popen.stdout is not None
    for read in job.popen.stdout:
        if read.rstrip().endswith(line):
            return
    raise AssertionError(f"the job ended without printing {line!r}: {job.finish()}")


@pytest.mark.parametrize(
    ("ending", "code", "words"),
    [
        ("sys.exit(3)", 3, "worker 1 failed first: exit code 3"),
        ("os.kill(os.getpid(), 9)", 137, "worker 1 failed first: killed by SIGKILL (exit code 137)"),
        ("raise RuntimeError('boom')", 1, "its last line was: RuntimeError: boom"),
    ],
)
def test_the_first_failure_ends_the_job_and_is_named(
    script: Script, ending: str, code: int, words: str
) -> None:
    job = run_byteps("run", "-np", "3", script(f"if rank == 1:\n    {ending}\nsignal.pause()\n"))
    returned, _, errors = job.finish()
    assert returned == code
    assert words in errors
    assert "worker 0 failed" not in errors
    assert not job.offspring()


def test_a_job_that_never_joins_ends_well(script: Script) -> None:
    job = run_byteps("run", "-np", "2", script("print('done', rank)"))
    code, output, errors = job.finish()
    assert (code, errors) == (0, "")
    assert sorted(output.splitlines()) == ["[worker 0] done 0", "[worker 1] done 1"]
    assert not job.offspring()


def test_workers_know_who_they_are(script: Script) -> None:
    job = run_byteps(
        *("run", "-np", "2", "--servers", "1", "--partition-bytes", "65536"),
        script("import json; print(json.dumps({k: v for k, v in os.environ.items() if 'BYTEPS_' in k}))"),
    )
    code, output, _ = job.finish()
    assert code == 0
    workers = sorted((json.loads(line[11:]) for line in output.splitlines()), key=lambda w: w["BYTEPS_RANK"])
    for rank, worker in enumerate(workers):
        expected = {"RANK": rank, "SIZE": 2, "LOCAL_RANK": rank, "LOCAL_SIZE": 2, "NUM_SERVERS": 1}
        expected["PARTITION_BYTES"] = 65536
        assert {name: int(worker[f"BYTEPS_{name}"]) for name in expected} == expected
        assert re.fullmatch(r"127\.0\.0\.1:\d+", worker["BYTEPS_COORDINATOR"])
        assert len(worker["BYTEPS_AUTH_TOKEN"]) >= 32
    assert workers[0]["BYTEPS_AUTH_TOKEN"] == workers[1]["BYTEPS_AUTH_TOKEN"]


def test_the_token_is_in_no_command_line(script: Script) -> None:
    job = run_byteps("run", "-np", "2", script("print(os.environ['BYTEPS_AUTH_TOKEN'])\nsignal.pause()"))
    assert job.popen.stdout is not None
    token = job.popen.stdout.readline().split()[-1]
    commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in job.offspring()]
    job.popen.send_signal(signal.SIGTERM)
    code, _, _ = job.finish()
    assert code == 143
    assert sum(b"coordinator" in command for command in commands) == 1
    assert not any(token.encode() in command for command in commands)


def test_threads_are_shared_out_unless_the_user_chose(script: Script) -> None:
    program = script("print(os.environ['OMP_NUM_THREADS'])")
    share = str(max(1, len(os.sched_getaffinity(0)) // 2))
    code, output, errors = run_byteps("run", "-np", "2", "--log-level", "info", program).finish()
    assert (code, sorted(output.splitlines())) == (0, [f"[worker 0] {share}", f"[worker 1] {share}"])
    assert errors.count(f"OMP_NUM_THREADS={share}") == 1
    chosen = run_byteps("run", "-np", "2", program, environment={"OMP_NUM_THREADS": "7"})
    assert sorted(chosen.finish()[1].splitlines()) == ["[worker 0] 7", "[worker 1] 7"]


def test_lines_stay_whole_and_none_is_lost(script: Script) -> None:
    """Many processes write pieces of long lines at the same time, and end in the middle of one."""
    program = script(
        """
        for number in range(500):
            text = f"{rank}:{number}:" + "x" * 300
            for part in (text[:100], text[100:] + "\\n"):
                os.write(1, part.encode())
        os.write(1, f"{rank}:500:end".encode())
        """
    )
    code, output, _ = run_byteps("run", "-np", "3", program).finish()
    assert code == 0
    found = re.findall(r"^\[worker (\d)\] \1:(\d+):(?:x{300}|end)$", output, re.MULTILINE)
    assert len(output.splitlines()) == len(found) == 3 * 501
    for rank in "012":
        assert [int(number) for who, number in found if who == rank] == list(range(501))


def test_ctrl_c_is_clean(script: Script) -> None:
    job = run_byteps("run", "-np", "2", script("print('ready')\nsignal.pause()"))
    _until(job, "ready")
    os.killpg(job.popen.pid, signal.SIGINT)
    code, _, errors = job.finish()
    assert code == 130
    assert errors == "byteps run: stopped by SIGINT; all processes have ended\n"
    assert not job.offspring()


def test_a_second_ctrl_c_ends_workers_that_do_not_stop(script: Script) -> None:
    program = script(
        """
        signal.signal(signal.SIGTERM, lambda *_: print("not yet", flush=True))
        print("ready")
        while True:
            signal.pause()
        """
    )
    job = run_byteps("run", "-np", "1", program)
    _until(job, "ready")
    job.popen.send_signal(signal.SIGINT)
    _until(job, "not yet")
    job.popen.send_signal(signal.SIGINT)
    assert job.finish()[0] == 130
    assert not job.offspring()


def test_daemons_of_a_worker_end_with_the_job(script: Script) -> None:
    program = script(
        """
        import subprocess
        for leave_the_group in (False, True):
            pause = [sys.executable, "-c", "import signal; signal.pause()"]
            subprocess.Popen(pause, start_new_session=leave_the_group)
        """
    )
    job = run_byteps("run", "-np", "2", program)
    assert job.finish()[0] == 0
    assert not job.offspring()


def test_kill_9_of_the_launcher_ends_everything(script: Script) -> None:
    job = run_byteps("run", "-np", "2", "--servers", "2", script("print('ready')\nsignal.pause()"))
    _until(job, "ready")
    _until(job, "ready")
    offspring = job.offspring()
    job.popen.kill()
    job.finish()
    assert len(offspring) == 5, "coordinator, two servers, two workers"
    assert all(wait_gone(pid) for pid in offspring)


def test_a_reader_that_goes_away_ends_the_job(script: Script) -> None:
    job = run_byteps("run", "-np", "2", script("while True:\n    print('more')\n"))
    assert job.popen.stdout is not None
    job.popen.stdout.readline()
    job.popen.stdout.close()
    assert job.popen.wait(30) == 128 + signal.SIGPIPE
    assert job.popen.stderr is not None
    assert "Traceback" not in job.popen.stderr.read()
    job.popen.stderr.close()
    assert not job.offspring()


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["-np", "2", "--", "no-such-program"], 127, "cannot start 'no-such-program': No such file"),
        (["-np", "2", "--", "/dev/null"], 126, "cannot start '/dev/null': Permission denied"),
        (["-np", "2"], 2, "which program should the workers run?"),
        (["-np", "0", "true"], 2, "0 is not at least 1"),
        (["-np", "2", "--scheduling", "random", "true"], 2, "--scheduling is 'random'"),
    ],
)
def test_what_cannot_run_is_said(words: list[str], code: int, message: str) -> None:
    job = run_byteps("run", *words)
    returned, output, errors = job.finish()
    assert (returned, output) == (code, "")
    assert message in errors
    assert "Traceback" not in errors
    assert not job.offspring()


def test_arguments_of_the_program_are_its_own(script: Script) -> None:
    program = script("print(sys.argv[1:])")
    for separator in ([], ["--"]):
        command = ("run", "-np", "1", *separator, sys.executable, program, "--servers", "9", "--", "-h")
        code, output, _ = run_byteps(*command).finish()
        assert (code, output) == (0, "[worker 0] ['--servers', '9', '--', '-h']\n")
