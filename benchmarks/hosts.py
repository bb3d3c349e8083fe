"""Where the processes of a measurement run: loopback, or (``benchmarks.cluster``) emulated hosts."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

from typing_extensions import Self

from benchmarks.common import ROOT
from byteps.config.environment import environment

Process = subprocess.Popen[str]
PORT_FINDER = "import socket, sys; s = socket.socket(); s.bind((sys.argv[1], 0)); print(s.getsockname()[1])"


class Hosts:
    """Runs processes, and ends those that are left when the ``with`` block does, however it ends.

    Attributes:
        interface: The network interface of each host's address.
    """

    interface = "lo"

    def __init__(self) -> None:
        self._processes: list[Process] = []
        self._old_handler: Any = None

    def address(self, host: int) -> str:
        """The address of a host, counted from 0."""
        return "127.0.0.1"

    def run(
        self, host: int, command: Sequence[str], env: Mapping[str, str] | None = None, **options: Any
    ) -> Process:
        """Start a process on a host, in the repository's folder. Its output goes to standard error.

        Args:
            host: Its number.
            command: Program and arguments.
            env: Variables on top of this process's.
            options: Of ``subprocess.Popen``.
        """
        variables = {**environment(), **(env or {})}
        variables.pop("BYTEPS_PEERS", None)  # of the benchmarks; byteps does not know it
        # A session of its own, so that Ctrl-C reaches only this process, which then ends all others.
        settings = {"cwd": ROOT, "text": True, "start_new_session": True, "stdout": sys.stderr, **options}
        process = subprocess.Popen(self._on(host, command), env=variables, **settings)
        self._processes.append(process)
        return process

    def free_port(self, host: int) -> str:
        """A port that nobody uses now, for programs that do not let the kernel choose one."""
        command = [sys.executable, "-c", PORT_FINDER, self.address(host)]
        return subprocess.run(
            self._on(host, command), check=True, capture_output=True, text=True
        ).stdout.strip()

    def _on(self, host: int, command: Sequence[str]) -> list[str]:
        """The command that runs ``command`` on a host."""
        return [*command]

    def __enter__(self) -> Self:
        self._old_handler = signal.signal(signal.SIGTERM, _exit_on_signal)
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
        for process in self._processes:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    _close(pipe)
        signal.signal(signal.SIGTERM, self._old_handler)


class Loopback(Hosts):
    """All hosts are this machine."""


def _exit_on_signal(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _close(pipe: Any) -> None:
    try:
        pipe.close()
    except BrokenPipeError:
        return
