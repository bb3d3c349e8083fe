"""Roles as child processes: what they are told, that they publish, that they never outlive their parent."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from byteps.children import ORPHANED_EXIT_CODE, ChildRole, as_environment, wait_readable
from byteps.errors import BytePSError

TOKEN = "a token that nobody else knows, 0123456789"

# A parent that starts a coordinator, tells its process id and stays. Its fork holds all that it inherited.
PARENT = """
import os, signal, sys, threading
from byteps.children import ChildRole

def start():
    child = ChildRole("coordinator", {"BYTEPS_AUTH_TOKEN": sys.argv[2]})
    child.wait_ready(30)
    if os.fork() == 0:
        signal.pause()
    print(child.popen.pid, flush=True)

if sys.argv[1] == "thread":
    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
else:
    start()
signal.pause()
"""


@contextmanager
def started(**settings: object) -> Iterator[ChildRole]:
    child = ChildRole("coordinator", as_environment({"auth_token": TOKEN, **settings}))
    try:
        yield child
    finally:
        child.terminate()


def test_the_coordinator_publishes_where_it_listens() -> None:
    with started() as child:
        assert not child.address
        host, port = child.wait_ready(30).split()
        assert child.address == f"{host} {port}"
        assert child.is_ready()
        socket.create_connection((host, int(port)), timeout=10).close()
        assert child.wait(0) is None
        assert child.terminate() == -signal.SIGTERM
        assert child.terminate() == child.wait() == -signal.SIGTERM


def test_secrets_are_in_the_environment_only() -> None:
    with started() as child:
        child.wait_ready(30)
        process = Path(f"/proc/{child.popen.pid}")
        assert TOKEN.encode() in (process / "environ").read_bytes()
        assert TOKEN.encode() not in (process / "cmdline").read_bytes()


def test_the_terminals_ctrl_c_does_not_reach_a_child() -> None:
    with started() as child:
        assert os.getpgid(child.popen.pid) == os.getsid(child.popen.pid) == child.popen.pid


def test_a_child_ends_when_its_parent_lets_go() -> None:
    with started() as child:
        child.wait_ready(30)
        child.close()
        assert child.wait(20) == ORPHANED_EXIT_CODE


def test_a_child_that_cannot_start_is_reported(capfd: pytest.CaptureFixture[str]) -> None:
    with (
        started(interface="no-such-interface") as child,
        pytest.raises(BytePSError, match=r"coordinator process ended before it was ready \(exit code 2\)"),
    ):
        child.wait_ready(30)
    assert "no-such-interface" in capfd.readouterr().err


def test_a_child_that_is_not_ready_in_time_is_ended() -> None:
    with started() as child:
        with pytest.raises(BytePSError, match="not ready after 0 s"):
            child.wait_ready(0)
        assert child.popen.returncode is not None


def test_a_released_child_outlives_its_parent() -> None:
    code = (
        "import sys; from byteps.children import ChildRole, wait_readable\n"
        "child = ChildRole('coordinator', {'BYTEPS_AUTH_TOKEN': sys.argv[1]})\n"
        "print(child.wait_ready(30), child.popen.pid, flush=True)\n"
        "other = ChildRole('coordinator', {'BYTEPS_AUTH_TOKEN': sys.argv[1]})\n"
        "assert wait_readable(other._ready, 30)\n"
        "child.release()\n"
        "other.release()\n"
        "print(other.popen.pid, flush=True)\n"
    )
    # The child inherits the output, so the pipe's end does not come with the parent's.
    with subprocess.Popen([sys.executable, "-c", code, TOKEN], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        host, port, pid = parent.stdout.readline().split()
        unread = parent.stdout.readline()
        assert parent.wait(30) == 0
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    finally:
        os.kill(int(pid), signal.SIGKILL)
        # Its line was never read: that must not be taken for its confirmation.
        os.kill(int(unread), signal.SIGKILL)


@pytest.mark.parametrize("starter", ["main", "thread"])
def test_kill_9_of_the_parent_ends_the_child(starter: str) -> None:
    """Also when a fork of the parent holds the lifeline, and when the thread that started it has ended."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, starter, TOKEN], stdout=subprocess.PIPE, start_new_session=True
    )
    with parent:
        assert parent.stdout is not None
        exit_fd = os.pidfd_open(int(parent.stdout.readline()))
        try:
            parent.kill()
            parent.wait(10)
            assert wait_readable(exit_fd, 10)
        finally:
            os.killpg(parent.pid, signal.SIGKILL)
            os.close(exit_fd)


def test_settings_become_variables() -> None:
    assert as_environment({"size": 3, "insecure": True, "port": 80, "interface": ""}) == {
        "BYTEPS_SIZE": "3",
        "BYTEPS_INSECURE": "1",
        "BYTEPS_INTERFACE": "",
    }


def test_a_token_file_hides_a_token() -> None:
    assert as_environment({"auth_token_file": "token"})["BYTEPS_AUTH_TOKEN"] == ""
