"""The coordinator and servers as child processes that cannot outlive the process that started them.

Each child is tied to its parent three times: a lifeline pipe that only the parent holds open, the parent's
pidfd (a forked relative of the parent may have inherited the pipe), and a parent-death signal (it also ends a
child that is stuck). A second pipe brings back one line from the child: where it listens.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from byteps.config import child_environment
from byteps.config.names import spellings, variable
from byteps.errors import BytePSError, remedy

ORPHANED_EXIT_CODE = 75
_PR_SET_PDEATHSIG = 1
_LINE_LIMIT_BYTES = 4096
_RELEASE = b"r"
_RELEASE_TIMEOUT_S = 5.0


def as_environment(settings: Mapping[str, object]) -> dict[str, str]:
    """Variables that hand settings on to processes to start.

    Args:
        settings: values by field name. Those without a variable are left out.
    """
    texts = {
        variable(name): str(int(value)) if isinstance(value, bool) else str(value)
        for name, value in settings.items()
        if spellings(name)
    }
    if "auth_token_file" in settings:
        # The file was asked for: a token that happens to be in the environment must not win.
        texts.setdefault(variable("auth_token"), "")
    return texts


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process as soon as the thread that started it ends.

    Args:
        parent: process id of the parent; if it is gone already, this process ends at once.
    """
    _set_parent_death_signal(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(ORPHANED_EXIT_CODE)


def _set_parent_death_signal(number: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def open_exit_fd(pid: int) -> int:
    """A file descriptor that becomes readable when the child ``pid`` has ended; the caller closes it.

    Kernels before 5.3 and strict sandboxes have no pidfd; a thread that waits for the child stands in for it.
    """
    try:
        return os.pidfd_open(pid)
    except OSError:
        readable, writable = os.pipe()

    def watch() -> None:
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        os.close(writable)

    threading.Thread(target=watch, name=f"byteps-wait-{pid}", daemon=True).start()
    return readable


def wait_readable(fd: int, timeout_s: float | None) -> bool:
    """Whether ``fd`` became readable (or reached its end) within ``timeout_s`` seconds (None: no limit)."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(None if timeout_s is None else max(0.0, timeout_s) * 1000))


class ChildRole:
    """A coordinator or server process started by this process.

    Attributes:
        role: "coordinator" or "server".
        popen: the process. It leads its own session, so the terminal's Ctrl-C does not reach it.
        address: what the child published when it was ready ("host port" for a coordinator); "" before that.
    """

    def __init__(
        self,
        role: str,
        environment: Mapping[str, str],
        *,
        options: Sequence[str] = (),
        stdout: int | None = None,
        stderr: int | None = None,
    ) -> None:
        """Start the child.

        Args:
            role: "coordinator" or "server".
            environment: settings for the child on top of this process's environment; secrets go here.
            options: further command line words; other users of the machine can read them.
            stdout: as in ``subprocess.Popen``; None inherits.
            stderr: as ``stdout``.
        """
        self.role = role
        self.address = ""
        lifeline, self._lifeline = os.pipe()
        self._ready, ready = os.pipe()
        try:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "byteps", role, "--leash", _leash(lifeline, ready), *options],
                env=child_environment(environment),
                pass_fds=(lifeline, ready),
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
            )
        except OSError as error:
            os.close(self._lifeline)
            os.close(self._ready)
            raise BytePSError(f"cannot start the {role} process: {error}{remedy(error)}") from error
        finally:
            os.close(lifeline)
            os.close(ready)
        self._exit = open_exit_fd(self.popen.pid)

    def wait_ready(self, timeout_s: float) -> str:
        """Wait until the child has published its line, and return it.

        Args:
            timeout_s: limit in seconds.

        Raises:
            BytePSError: the child ended or said nothing in time; it has been ended then.
        """
        if self.address:
            return self.address
        published = self._read_ready(timeout_s)
        if published is None:
            self.terminate()
            raise BytePSError(f"the {self.role} process was not ready after {timeout_s:g} s")
        line = published.decode().strip()
        if not line:
            code = self.terminate()
            raise BytePSError(f"the {self.role} process ended before it was ready (exit code {code})")
        self.address = line
        return line

    def is_ready(self) -> bool:
        """Whether the child has published its line, or has ended."""
        return bool(self.address) or self._ready < 0 or wait_readable(self._ready, 0)

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait for the child to end by itself.

        Args:
            timeout_s: limit in seconds; None waits without limit.

        Returns:
            Its exit code (negative: ended by that signal), or None if it still runs.
        """
        if self.popen.poll() is None and not wait_readable(self._exit, timeout_s):
            return None
        code = self.popen.wait()
        self.close()
        self._exit = _close(self._exit)
        return code

    def terminate(self, grace_s: float = 5.0) -> int:
        """End the child now: politely first, by force after ``grace_s`` seconds. Returns its exit code."""
        if self.popen.poll() is None:
            self.popen.terminate()
            if self.wait(grace_s) is None:
                self.popen.kill()
        code = self.wait()
        assert code is not None, "a wait without limit ends with an exit code"
        return code

    def release(self) -> None:
        """Let the child outlive this process: it is needed until the other members of the job have left.

        A child that does not confirm, or has ended, is left as it is.
        """
        if self._lifeline >= 0 and self.popen.poll() is None:
            with suppress(BrokenPipeError):
                os.write(self._lifeline, _RELEASE)
                # Until it confirms, the parent-death signal is armed. Its line may still lie before that.
                while (answer := self._read_ready(_RELEASE_TIMEOUT_S)) and not answer.endswith(_RELEASE):
                    pass
        self.close()

    def close(self) -> None:
        """Let go of the pipes; a child that was not released takes that as an order to end. Repeatable."""
        self._lifeline = _close(self._lifeline)
        self._ready = _close(self._ready)

    def _read_ready(self, timeout_s: float) -> bytes | None:
        """What the child has written since the last look; empty at the end, None if nothing came in time."""
        return os.read(self._ready, _LINE_LIMIT_BYTES) if wait_readable(self._ready, timeout_s) else None


def _close(fd: int) -> int:
    """Close ``fd`` unless it is closed (-1); returns -1."""
    if fd >= 0:
        os.close(fd)
    return -1


def _leash(lifeline: int, ready: int) -> str:
    """What the child needs to tie itself to this process, as one command line word without secrets."""
    # The kernel sends the parent-death signal when the *thread* that started the child ends. Only the main
    # thread is sure to live as long as the process does.
    lasting = threading.current_thread() is threading.main_thread()
    return f"{lifeline}:{ready}:{os.getpid()}:{int(lasting)}"


def hold(leash: str) -> Callable[[str], None]:
    """Called first thing in the child: tie this process to its parent.

    Args:
        leash: the value of ``--leash``.

    Returns:
        A function that publishes one line to the parent; to be called once.
    """
    lifeline, ready, parent, lasting = (int(part) for part in leash.split(":"))
    tied = threading.Event()

    def watch() -> None:
        parent_fds = _tie(parent, lasting=bool(lasting))
        tied.set()
        poller = select.poll()
        for fd in (lifeline, *parent_fds):
            poller.register(fd, select.POLLIN)
        poller.poll()
        os.set_blocking(lifeline, False)
        with suppress(BlockingIOError):
            if os.read(lifeline, 1) == _RELEASE:
                _set_parent_death_signal(0)
                os.write(ready, _RELEASE)
                return
        os._exit(ORPHANED_EXIT_CODE)

    threading.Thread(target=watch, name="byteps-lifeline", daemon=True).start()
    tied.wait()

    def publish(line: str) -> None:
        with suppress(BrokenPipeError):
            os.write(ready, line.encode() + b"\n")

    return publish


def _tie(parent: int, *, lasting: bool) -> Sequence[int]:
    """Have the parent's end end this process, and return the parent's pidfd where there is one.

    The parent-death signal belongs to the thread that asks for it, and that one has to take it back.
    """
    parent_fds: Sequence[int] = ()
    with suppress(OSError):
        parent_fds = (os.pidfd_open(parent),)
    if lasting:
        die_with_parent(parent)
    elif os.getppid() != parent:
        os._exit(ORPHANED_EXIT_CODE)
    return parent_fds
