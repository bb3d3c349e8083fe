"""A dump on demand: on SIGUSR1 a process writes all Python stacks and a report of its own to stderr.

The handler is ``faulthandler``'s, which runs whatever the process is doing, a long call into C included. It
writes the stacks into a pipe; a thread reads them there, prints them and asks for the report. To the module
``signal`` the signal stays free, so a handler that the program installs later takes it over.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import fcntl
import os
import select
import signal
import sys
import threading
from collections.abc import Callable

SIGNAL = signal.SIGUSR1
_PIPE_BYTES = 1 << 20
_READ_BYTES = 1 << 16
_QUIET_MS = 50
_SIGACTION_BYTES = 512  # more than any C library's struct
_STDERR = 2
_END = b"\0"


class DumpOnSignal:
    """Answers SIGUSR1 until closed. Does nothing where the program has a handler of its own.

    Args:
        title: the process in the dump's first line: "rank 1 of 4".
        report: called on a thread of its own at each signal; its lines follow the stacks.
    """

    def __init__(self, title: str, report: Callable[[], list[str]]) -> None:
        self._title = title
        self._report = report
        self._handler = 0
        self._thread: threading.Thread | None = None
        if _c_handler() == 0:
            self._install()

    @property
    def installed(self) -> bool:
        """Whether the signal leads here."""
        return self._handler != 0 and _c_handler() == self._handler

    def close(self) -> None:
        """Give the signal back, unless the program has taken it meanwhile. May be repeated."""
        if self._handler == 0:
            return
        if self.installed:
            faulthandler.unregister(SIGNAL)
        self._handler = 0
        with contextlib.suppress(BlockingIOError):
            os.write(self._write, _END)
        os.close(self._write)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def abandon(self) -> None:
        """In a forked child: its stacks go straight to stderr, and the parent's pipe is left alone."""
        if self._handler == 0:
            return
        if self.installed:
            faulthandler.register(SIGNAL, file=_STDERR)
        self._handler = 0
        os.close(self._write)
        os.close(self._read)

    def _install(self) -> None:
        self._read, self._write = os.pipe()
        # The handler must never wait for the reader: it may hold the lock that the reader needs to go on.
        os.set_blocking(self._write, False)
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._write, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._thread = threading.Thread(target=self._serve, name="byteps-dump", daemon=True)
        self._thread.start()
        faulthandler.register(SIGNAL, file=self._write)
        self._handler = _c_handler()

    def _serve(self) -> None:
        poller = select.poll()
        poller.register(self._read, select.POLLIN)
        who = f"byteps: {self._title}, pid {os.getpid()}"
        while (stacks := os.read(self._read, _READ_BYTES)) and _END not in stacks:
            # One signal writes many pieces.
            while poller.poll(_QUIET_MS) and (more := os.read(self._read, _READ_BYTES)):
                stacks += more
            self._print(f"{who}, Python stacks:", stacks.decode(errors="replace"))
            self._print(f"{who}:", *self._safe_report())
            if _END in stacks:
                break
        os.close(self._read)

    def _safe_report(self) -> list[str]:
        try:
            return [f"  {line}" for line in self._report()]
        except Exception as error:  # a dump must not end the training
            return [f"  no report: {type(error).__name__}: {error}"]

    def _print(self, *lines: str) -> None:
        # A dump that cannot be written is no reason to end the training.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stderr.write("".join(f"{line.rstrip()}\n" for line in lines))
            sys.stderr.flush()


def _c_handler() -> int:
    """The address of the signal's handler, 0 for none: ``signal.getsignal`` knows Python's own ones only."""
    action = ctypes.create_string_buffer(_SIGACTION_BYTES)
    if ctypes.CDLL(None, use_errno=True).sigaction(int(SIGNAL), None, action) != 0:
        return 0
    # The handler comes first in the structure, on all of Linux.
    return ctypes.c_size_t.from_buffer(action).value
