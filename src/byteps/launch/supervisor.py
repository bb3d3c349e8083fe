"""Watches the processes of a job: forwards their output, and ends all of them when one fails or on Ctrl-C."""

from __future__ import annotations

import ctypes
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from pathlib import Path
from types import FrameType

from byteps.children import die_with_parent, open_exit_fd
from byteps.config import child_environment
from byteps.launch.output import Console, Stream

SURVIVOR_GRACE_S = 3.0
"""After a failure: long enough for the others to notice, and to say whom they have lost."""

STOP_GRACE_S = 10.0
"""From the request to stop until the kill. Long enough to write a checkpoint."""

ROLE_GRACE_S = 1.0
"""After the last worker, servers and coordinator end by themselves; if not in this time, they are told to."""

_PR_SET_CHILD_SUBREAPER = 36
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_FORWARDED = (signal.SIGUSR1,)


@dataclass(slots=True)
class Task:
    """One supervised process.

    Attributes:
        name: "worker 0", "server 1", "coordinator".
        popen: the process; it leads its own process group.
        is_worker: whether the job lasts as long as this process.
        streams: its stdout and stderr.
        code: its exit code as a shell counts it (128 + n: ended by signal n), None while it runs.
    """

    name: str
    popen: subprocess.Popen[bytes]
    is_worker: bool
    streams: list[Stream] = field(default_factory=list)
    code: int | None = None

    def signal_group(self, number: int) -> None:
        """Send a signal to the process and all that it started and that did not leave its group."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.popen.pid, number)

    def ask_to_end(self) -> None:
        """Send SIGTERM, and have a process that was stopped go on, or it would never see it."""
        self.signal_group(signal.SIGTERM)
        self.signal_group(signal.SIGCONT)

    def describe(self) -> str:
        """How the process ended."""
        if self.popen.returncode is not None and self.popen.returncode < 0:
            return f"killed by {signal.Signals(-self.popen.returncode).name} (exit code {self.code})"
        return f"exit code {self.code}"


class Phase(IntEnum):
    """How far the end of the job has come."""

    RUNNING = 0
    FAILING = 1  # a process has failed; the others may end by themselves
    STOPPING = 2  # the workers were asked to stop
    FINISHING = 3  # no worker is left; servers and coordinator follow


class Supervisor:
    """Runs a set of processes as one job. Used from the main thread, once."""

    def __init__(
        self,
        title: str,
        *,
        in_use: Callable[[], bool] = lambda: True,
        role_grace_s: float = ROLE_GRACE_S,
    ) -> None:
        """Watch over no process yet.

        Args:
            title: name of the job in messages.
            in_use: whether the workers have used servers and coordinator, so that these end by themselves.
            role_grace_s: how long servers and coordinator have for that.
        """
        self._title = title
        self._in_use = in_use
        self._role_grace_s = role_grace_s
        self._selector = selectors.DefaultSelector()
        self._tasks: list[Task] = []
        self._phase = Phase.RUNNING
        self._failed: Task | None = None
        self._signal = 0
        self._deadline: float | None = None
        self._at_deadline: Callable[[], None] = self._kill
        colour = "NO_COLOR" not in child_environment({})
        self._stdout, self._stderr = Console(1, colour=colour), Console(2, colour=colour)

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start a worker.

        Args:
            name: shown before each line of its output.
            command: program and arguments.
            environment: variables on top of this process's own.

        Raises:
            OSError: the program cannot be started.
        """
        popen = subprocess.Popen(
            command,
            env=child_environment(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            # Safe here: this process has one thread.
            preexec_fn=partial(die_with_parent, os.getpid()),
        )
        self.add(name, popen, is_worker=True)

    def add(self, name: str, popen: subprocess.Popen[bytes], *, is_worker: bool = False) -> None:
        """Supervise a process that was started with pipes for its output, as the leader of its own group."""
        task = Task(name, popen, is_worker)
        for pipe, console in ((popen.stdout, self._stdout), (popen.stderr, self._stderr)):
            if pipe is not None:
                stream = Stream(os.dup(pipe.fileno()), console, console.prefix(name, len(self._tasks)))
                pipe.close()
                task.streams.append(stream)
                self._selector.register(stream.fd, selectors.EVENT_READ, partial(self._pump, stream))
        exit_fd = open_exit_fd(popen.pid)
        self._tasks.append(task)
        self._selector.register(exit_fd, selectors.EVENT_READ, partial(self._exited, task, exit_fd))

    def say(self, line: str) -> None:
        """Write a line of the launcher itself to stderr."""
        self._stderr.write(f"{self._title}: {line}\n".encode(errors="replace"))

    @contextmanager
    def running(self) -> Iterator[None]:
        """While the body starts processes and calls ``run``: signals are handled; then nothing is left."""
        _adopt_orphans()
        wakeup, write_end = os.pipe()
        os.set_blocking(wakeup, False)
        os.set_blocking(write_end, False)
        self._selector.register(wakeup, selectors.EVENT_READ, partial(self._signalled, wakeup))
        previous_fd = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        # What nohup or a shell's background job ignores stays ignored.
        previous = {
            number: signal.signal(number, _leave_to_wakeup)
            for number in (*_STOPPING, *_FORWARDED)
            if signal.getsignal(number) is not signal.SIG_IGN
        }
        try:
            yield
        finally:
            self._kill()
            for task in self._tasks:
                task.popen.wait()
                for stream in task.streams:
                    stream.drain()
            _end_orphans()
            signal.set_wakeup_fd(previous_fd)
            for number, handler in previous.items():
                signal.signal(number, handler)
            self._selector.close()
            os.close(wakeup)
            os.close(write_end)

    def run(self) -> int:
        """Wait for the job to end.

        Returns:
            0 when all workers ended well, else the exit code of the process that failed first, or 128 plus
            the number of the signal that stopped the job.
        """
        while any(task.code is None for task in self._tasks):
            left_s = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
            # The kernel reports in the order of occurrence, so the first failure comes first.
            for key, _ in self._selector.select(left_s):
                if key.fd in self._selector.get_map():
                    key.data()
            for console in (self._stdout, self._stderr):
                if news := console.news():
                    self.say(news)
            if (self._stdout.broken or self._stderr.broken) and self._phase is Phase.RUNNING:
                self._signal = signal.SIGPIPE
                self._stop()
            if self._deadline is not None and self._deadline <= time.monotonic():
                self._deadline = None
                self._at_deadline()
        for line in self._summary():
            self.say(line)
        if self._failed is not None and self._failed.code is not None:
            return self._failed.code
        return 128 + self._signal if self._signal else 0

    def _pump(self, stream: Stream) -> None:
        fd = stream.fd
        stream.pump()
        if stream.fd < 0:
            self._selector.unregister(fd)

    def _exited(self, task: Task, exit_fd: int) -> None:
        # Not reaped yet, so its number still means its group: whatever it left behind ends with it.
        task.signal_group(signal.SIGKILL)
        self._selector.unregister(exit_fd)
        os.close(exit_fd)
        code = task.popen.wait()
        task.code = code if code >= 0 else 128 - code
        for stream in task.streams:
            if stream.fd >= 0:
                self._selector.unregister(stream.fd)
                stream.drain()
        if self._phase is Phase.RUNNING and task.code != 0:
            self._failed = task
            self._fail()
        if self._phase is not Phase.FINISHING and not self._workers():
            self._finish(self._role_grace_s if self._phase < Phase.STOPPING and self._in_use() else 0)

    def _signalled(self, wakeup: int) -> None:
        for number in os.read(wakeup, 64):
            if number in _FORWARDED:
                self._forward(number)
            if number not in _STOPPING:
                continue
            if self._signal:
                self._kill()
            elif self._phase is Phase.RUNNING:
                self._signal = number
                self._stop()
            else:
                self._signal = number
                self._at_deadline()

    def _forward(self, number: int) -> None:
        """Pass a signal on to every process that would not die of it."""
        for task in self._tasks:
            if task.code is None and _catches(task.popen.pid, number):
                task.popen.send_signal(number)

    def _running(self) -> list[Task]:
        return [task for task in self._tasks if task.code is None]

    def _workers(self) -> list[Task]:
        return [task for task in self._running() if task.is_worker]

    def _fail(self) -> None:
        """Let the others notice, unless they have not met yet and cannot."""
        if self._in_use():
            self._phase = Phase.FAILING
            self._set_deadline(SURVIVOR_GRACE_S, self._stop)
        else:
            self._stop()

    def _stop(self) -> None:
        """Ask all workers to stop; servers and coordinator follow when the workers are gone."""
        if not self._workers():
            self._finish(0)
            return
        self._phase = Phase.STOPPING
        for task in self._workers():
            task.ask_to_end()
        self._set_deadline(STOP_GRACE_S, self._kill)

    def _finish(self, grace_s: float) -> None:
        """The last worker has ended: servers and coordinator have ``grace_s`` seconds to end as well."""
        self._phase = Phase.FINISHING
        self._set_deadline(grace_s, self._end_roles)

    def _end_roles(self) -> None:
        for task in self._running():
            task.ask_to_end()
        self._set_deadline(STOP_GRACE_S, self._kill)

    def _kill(self) -> None:
        for task in self._running():
            task.signal_group(signal.SIGKILL)

    def _set_deadline(self, delay_s: float, action: Callable[[], None]) -> None:
        self._deadline = time.monotonic() + delay_s
        self._at_deadline = action

    def _summary(self) -> Iterator[str]:
        """What the user should know at the end: nothing after success."""
        if self._failed is not None:
            alone = len(self._tasks) == 1
            how = self._failed.describe() if alone else f"{self._failed.describe()}; the others were stopped"
            yield f"{self._failed.name} failed{'' if alone else ' first'}: {how}"
            if words := self._failed.streams[-1].last_line:
                yield f"its last line was: {words.decode(errors='replace')}"
        lost = self._stdout.lost_bytes + self._stderr.lost_bytes
        if lost:
            yield f"{lost} bytes of output were lost"
        if self._failed is None and self._signal:
            yield f"stopped by {signal.Signals(self._signal).name}; all processes have ended"


def _catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal; False where nobody can tell."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def _leave_to_wakeup(number: int, frame: FrameType | None) -> None:
    """The signal's number is in the wake-up pipe; the loop does the rest."""


def _adopt_orphans() -> None:
    """Have processes that lose their parent become this process's children, so that it can end them."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _end_orphans() -> None:
    """End every descendant that left its process group, such as a daemon that a training script started."""
    children = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    with suppress(OSError):
        while pids := [int(pid) for pid in children.read_text().split()]:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
