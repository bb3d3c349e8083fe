"""Start commands, and tell whether anything that they started is still there."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

MARKER = "BPS_TEST_MARKER"
THROUGH_SERVERS = {"BYTEPS_HIERARCHICAL": "off"}
"""For jobs of which a test wants to see the servers: ranks that share a host leave them out."""
TIMEOUT_S = 40.0
# What the tests' own surroundings may have set must not reach the jobs.
_FOREIGN = ("BYTEPS_", "DMLC_", "HOROVOD_", "SLURM_", "OMPI_", "PMI_", "TORCHELASTIC_", "OMP_", "NVIDIA_")
_FOREIGN_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without anything that says who it is in a job."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_FOREIGN) and name not in _FOREIGN_NAMES
    }
    return {**kept, **(extra or {})}


@dataclass
class Job:
    """A command in a session of its own, and all its offspring, known by a variable in their environment."""

    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None
    stdout: int = subprocess.PIPE

    def __post_init__(self) -> None:
        self.marker = uuid.uuid4().hex
        self.popen = subprocess.Popen(
            self.command,
            env={**clean_environment(self.environment), MARKER: self.marker},
            cwd=self.cwd,
            stdout=self.stdout,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def finish(self, timeout_s: float = TIMEOUT_S) -> tuple[int, str, str]:
        """Wait for the command; its exit code, stdout and stderr."""
        try:
            output, errors = self.popen.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            output, errors = self.popen.communicate()
            raise AssertionError(f"still running after {timeout_s} s:\n{output}\n{errors}") from None
        return self.popen.returncode, output, errors

    def offspring(self) -> list[int]:
        """Processes of this job that are alive, without the command itself."""
        return [pid for pid in marked(self.marker) if pid != self.popen.pid]

    def kill(self) -> None:
        """End everything that belongs to the job."""
        for pid in [self.popen.pid, *self.offspring()]:
            with suppress(ProcessLookupError):
                os.kill(pid, 9)


def run_byteps(*words: str, environment: Mapping[str, str] | None = None) -> Job:
    """Start the ``byteps`` command."""
    return Job([sys.executable, "-m", "byteps", *words], environment or {})


def dump(job: Job, pid: int, *awaited: str) -> str:
    """Ask a process what it is at (SIGUSR1), and read stderr until every one of the patterns has come."""
    os.kill(pid, signal.SIGUSR1)
    assert job.popen.stderr is not None
    read = ""
    for line in job.popen.stderr:
        read += line
        if all(re.search(pattern, read, re.MULTILINE) for pattern in awaited):
            return read
    raise AssertionError(f"the job ended without saying all of {awaited!r}:\n{read}")


def marked(marker: str) -> list[int]:
    """Processes, zombies not counted, that have the marker in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"{MARKER}={marker}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def wait_gone(pid: int, timeout_s: float = 10.0) -> bool:
    """Whether a process, which need not be a child, ends in time."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        return bool(poller.poll(timeout_s * 1000))
    finally:
        os.close(fd)
