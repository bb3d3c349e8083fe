"""A job whose processes are started one by one, so that each one's end is seen: when, how, and its words."""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from .jobs import MARKER, clean_environment, marked

PEER_TIMEOUT_S = 2.0
SLACK_S = 2.0
"""How much later than stated a survivor may end."""

START_TIMEOUT_S = 30.0
SCRIPT = str(Path(__file__).with_name("faulty.py"))
SIGNALS = {
    "kill": signal.SIGKILL,
    "stop": signal.SIGSTOP,
    "exit": signal.SIGTERM,
    "exception": signal.SIGHUP,
    "interrupt": signal.SIGINT,
    "continue": signal.SIGCONT,
    "leave": signal.SIGUSR2,
}


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended.

    Attributes:
        code: its exit code, negative for a signal.
        at_s: when, by ``time.monotonic()``.
        output: all that it printed.
        errors: all that it wrote to stderr.
    """

    code: int
    at_s: float
    output: str
    errors: str

    def __str__(self) -> str:
        lines = self.errors.splitlines()
        return f"code {self.code}, printed {self.output.split()}, last words:\n  " + "\n  ".join(lines[-8:])

    @property
    def complaints(self) -> list[str]:
        """The errors that a user sees: last lines of tracebacks, and log lines of errors."""
        patterns = (r"^byteps\.errors\.\w+: .*$", r"^RuntimeError: .*$", r"^.*ERROR byteps\S*: .*$")
        also = (
            r"^byteps \w+: error: .*$",
            r"^.*Exception ignored.*$",
            r"^.*exception was never retrieved.*$",
        )
        return re.findall("|".join((*patterns, *also)), self.errors, re.MULTILINE)


class Process:
    """One process of a job, and what it has written so far."""

    def __init__(self, command: Sequence[str], environment: dict[str, str]) -> None:
        self.popen = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._changed = threading.Condition()
        self._texts = ["", ""]
        self._ended_s = 0.0
        assert self.popen.stdout is not None
        assert self.popen.stderr is not None
        streams = (self.popen.stdout, self.popen.stderr)
        self._threads = [
            *(threading.Thread(target=self._read, args=(n, stream)) for n, stream in enumerate(streams)),
            threading.Thread(target=self._watch),
        ]
        for thread in self._threads:
            thread.start()

    def _read(self, number: int, stream: IO[str]) -> None:
        for line in stream:
            with self._changed:
                self._texts[number] += line
                self._changed.notify_all()
        stream.close()

    def _watch(self) -> None:
        self.popen.wait()
        with self._changed:
            self._ended_s = time.monotonic()
            self._changed.notify_all()

    def await_text(self, pattern: str) -> str:
        """Wait until the process has written something; what the pattern's group matched, if it has one."""

        def found() -> re.Match[str] | None:
            return re.search(pattern, self._texts[0]) or re.search(pattern, self._texts[1])

        with self._changed:
            self._changed.wait_for(lambda: found() or self._ended_s, START_TIMEOUT_S)
            match = found()
        assert match is not None, f"{pattern!r} did not come: {self._texts}"
        return match[match.lastindex or 0]

    def numbers(self, word: str) -> list[int]:
        """What it has printed behind the word so far."""
        with self._changed:
            return [int(number) for number in re.findall(rf"^{word} (\d+)$", self._texts[0], re.MULTILINE)]

    def ended(self, until_s: float) -> Ended | None:
        """How it ended, if it did until then by ``time.monotonic()``."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended_s, max(0.0, until_s - time.monotonic()))
            if not self._ended_s:
                return None
        for thread in self._threads:
            thread.join(max(0.0, until_s + SLACK_S - time.monotonic()))
        return Ended(self.popen.returncode, self._ended_s, self._texts[0], self._texts[1])

    def kill(self) -> None:
        """End it and wait until nothing of it is left."""
        self.popen.kill()
        for thread in self._threads:
            thread.join()


@dataclass
class FaultyJob:
    """A job of processes by name: "coordinator", "server 0", "worker 1". A context manager that ends all.

    Attributes:
        workers: how many there are to be.
        servers: how many there are to be.
        settings: variables for all.
        processes: those that were started.
    """

    workers: int = 2
    servers: int = 2
    settings: dict[str, str] = field(default_factory=dict)
    processes: dict[str, Process] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.marker = uuid.uuid4().hex
        self._shared = {
            **clean_environment(),
            MARKER: self.marker,
            "BYTEPS_AUTH_TOKEN": secrets.token_hex(16),
            "BYTEPS_PEER_TIMEOUT": str(PEER_TIMEOUT_S),
            "BYTEPS_HEARTBEAT": "0.2",
            "BYTEPS_LOG_HIDE_TIME": "1",
            "BYTEPS_HIERARCHICAL": "off",  # or ranks of one host leave the servers out
            "OMP_NUM_THREADS": "1",
            **self.settings,
        }

    def __enter__(self) -> FaultyJob:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.processes.values():
            process.kill()
        for pid in marked(self.marker):
            os.kill(pid, signal.SIGKILL)

    def set(self, settings: dict[str, str]) -> None:
        """Change variables of those that are started from now on."""
        self._shared = {**self._shared, **settings}

    def start_roles(self, *coordinator_options: str) -> None:
        """Start the coordinator, and servers that join it."""
        self.start_coordinator(*coordinator_options)
        for number in range(self.servers):
            self.start_server(number)

    def start_coordinator(self, *options: str) -> None:
        """Start the coordinator and learn its address."""
        counts = ("--num-workers", str(self.workers), "--num-servers", str(self.servers))
        command = [sys.executable, "-m", "byteps", "coordinator", "--log-level", "info", *counts, *options]
        self.processes["coordinator"] = Process(command, self._shared)
        address = self.processes["coordinator"].await_text(r"BYTEPS_COORDINATOR=(\S+)\n")
        self._shared = {**self._shared, "BYTEPS_COORDINATOR": address}

    def start_server(self, number: int) -> None:
        """Start one server."""
        command = [sys.executable, "-m", "byteps", "server"]
        self.processes[f"server {number}"] = Process(command, {**self._shared, "BYTEPS_RANK": str(number)})

    def start_worker(self, rank: int, *words: str) -> None:
        """Start one worker: a program of ``faulty.py``, or a script and its arguments."""
        command = [sys.executable, *(words if words[0].endswith(".py") else (SCRIPT, *words))]
        identity = {"BYTEPS_RANK": str(rank), "BYTEPS_SIZE": str(self.workers)}
        self.processes[f"worker {rank}"] = Process(command, {**self._shared, **identity})

    def start_torchrun_rank(self, rank: int, *words: str) -> None:
        """Start a worker with torchrun's variables, yet without its agent, which would hide how it ends."""
        identity = {"RANK": str(rank), "WORLD_SIZE": str(self.workers), "LOCAL_RANK": str(rank)}
        environment = {**self._shared, **identity, "LOCAL_WORLD_SIZE": str(self.workers)}
        self.processes[f"worker {rank}"] = Process([sys.executable, *words], environment)

    @property
    def address(self) -> str:
        """The coordinator's, as host:port."""
        return self._shared["BYTEPS_COORDINATOR"]

    @property
    def token(self) -> str:
        """The job's secret."""
        return self._shared["BYTEPS_AUTH_TOKEN"]

    def await_joined(self, *names: str) -> None:
        """Wait until these have joined."""
        for name in names:
            known_as = name.replace("worker", "worker rank")
            self.processes["coordinator"].await_text(rf"INFO .*: {known_as} .* has joined\n")

    def await_text(self, text: str, *names: str) -> None:
        """Wait until these, or all workers, have written it."""
        for name in names or [name for name in self.processes if name.startswith("worker")]:
            self.processes[name].await_text(text)

    def send(self, name: str, how: str) -> float:
        """Send a process one of ``SIGNALS``; the time."""
        self.processes[name].popen.send_signal(SIGNALS[how])
        return time.monotonic()

    def ends(self, until_s: float, *but: str) -> dict[str, Ended]:
        """How all processes, but for some, ended; all must have until then by ``time.monotonic()``."""
        ended = {name: process.ended(until_s) for name, process in self.processes.items() if name not in but}
        assert None not in ended.values(), f"still running: {ended}"
        return {name: end for name, end in ended.items() if end is not None}

    def left_over(self) -> list[int]:
        """Processes of the job, their offspring included, that are there."""
        return marked(self.marker)
