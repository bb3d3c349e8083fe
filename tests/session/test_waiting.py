"""Waiting: it is never silent, can be given up, holds no lock that others need, and Ctrl-C ends it."""

from __future__ import annotations

import contextlib
import logging
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
import pytest

from byteps.errors import StallTimeout
from byteps.testing import cluster, run_ranks

from .arrays import exchange, spec, start

ROOT = Path(__file__).resolve().parents[2]
WARNING_S = 0.2


def test_a_late_rank_is_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    what = spec("layer1.weight", 200_000)
    data = [np.ones(what.length, np.float32) for _ in range(3)]
    warned = threading.Event()

    def note(record: logging.LogRecord) -> bool:
        warned.set()
        return True

    caplog.set_level(logging.WARNING, "byteps.session")
    caplog.handler.addFilter(note)
    with cluster(3, servers=2, stall_warning_s=WARNING_S, heartbeat_s=0.05) as sessions:
        handles = [start(sessions[rank], what, data[rank], data[rank]) for rank in (0, 2)]
        waiter = threading.Thread(target=handles[0].wait)
        waiter.start()
        assert warned.wait(10)
        handles.append(start(sessions[1], what, data[1], data[1]))
        waiter.join(10)
        for handle in handles:
            handle.wait()
    text = caplog.messages[0]
    sentence = r"step 1, layer1\.weight: waiting for rank 1, last heard \d\.\d s ago, \d+ s so far"
    assert re.fullmatch(sentence, text), text
    assert all(np.all(array == 3) for array in data)


def test_every_late_rank_is_named(caplog: pytest.LogCaptureFixture) -> None:
    what = spec("x", 1)
    late = pytest.raises(
        StallTimeout, match=r"x: waiting for ranks 0 \(last .*\), 1 \(last .*\) and 3 \(last"
    )
    with cluster(4, stall_warning_s=WARNING_S, stall_timeout_s=WARNING_S) as sessions, late:
        exchange(sessions[2], what, np.ones(1, np.float32))


@pytest.mark.parametrize("warning_s", [0.0, 0.1, 30.0], ids=["no warning", "short", "long"])
def test_a_stall_is_given_up_after_its_time(warning_s: float, caplog: pytest.LogCaptureFixture) -> None:
    what, timeout_s = spec("x", 10), 0.4
    with cluster(2, stall_warning_s=warning_s, stall_timeout_s=timeout_s) as sessions:
        begin = time.monotonic()
        with pytest.raises(StallTimeout, match=r"step 1, x: waiting for rank 1, .*; stall_timeout_s is 0.4"):
            exchange(sessions[0], what, np.ones(10, np.float32))
        assert timeout_s <= time.monotonic() - begin < 5
    warnings = [message for message in caplog.messages if "waiting for" in message]
    assert (len(warnings) > 1) == (warning_s == 0.1)


def test_no_warning_is_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    """0 seconds mean never, not all the time."""
    what = spec("x", 10)
    with cluster(2, stall_warning_s=0) as sessions:
        data = np.ones(10, np.float32)
        handle = start(sessions[0], what, data, data)
        waiter = threading.Thread(target=handle.wait)
        waiter.start()
        begin_cpu_s = time.process_time()
        waiter.join(0.3)
        assert time.process_time() - begin_cpu_s < 0.2
        assert waiter.is_alive()
        exchange(sessions[1], what, np.ones(10, np.float32))
        waiter.join(10)
        assert not waiter.is_alive()
    assert caplog.messages == []


def test_a_stalled_round_can_be_waited_for_again() -> None:
    what = spec("x", 10)
    with cluster(2, stall_warning_s=WARNING_S, stall_timeout_s=WARNING_S) as sessions:
        data = np.ones(10, np.float32)
        handle = start(sessions[0], what, data, data)
        with pytest.raises(StallTimeout):
            handle.wait()
        exchange(sessions[1], what, np.ones(10, np.float32))
        handle.wait()
        assert np.all(data == 2)


def test_waiting_leaves_the_interpreter_to_others() -> None:
    """Some thread computes while another waits: if waiting held the GIL, the count would stand still."""
    what = spec("x", 1000)
    with cluster(2) as sessions:
        data = np.ones(1000, np.float32)
        waiter = threading.Thread(target=start(sessions[0], what, data, data).wait)
        waiter.start()
        count, end = 0, time.monotonic() + 0.2
        while time.monotonic() < end:
            count += 1
        assert waiter.is_alive()
        assert count > 10_000
        exchange(sessions[1], what, np.ones(1000, np.float32))
        waiter.join(10)
        assert np.all(data == 2)


def test_many_threads_may_wait_for_one_round() -> None:
    what = spec("x", 1000)
    with cluster(2) as sessions:
        data = np.ones(1000, np.float32)
        handle = start(sessions[0], what, data, data)
        waiters = [threading.Thread(target=handle.wait) for _ in range(8)]
        for waiter in waiters:
            waiter.start()
        exchange(sessions[1], what, np.ones(1000, np.float32))
        for waiter in waiters:
            waiter.join(10)
            assert not waiter.is_alive()
        run_ranks(sessions, lambda one: exchange(one, what, data))


def test_one_session_serves_many_threads() -> None:
    """Each thread has its own tensors; all submit and wait at once."""

    def run(number: int) -> bool:
        what = spec(f"of thread {number}", 100 + number)
        results = []
        for _ in range(50):
            data = [np.full(what.length, number, np.float32) for _ in sessions]
            handles = [start(one, what, array, array) for one, array in zip(sessions, data, strict=True)]
            for handle in handles:
                handle.wait()
            results.append(all(np.all(array == 2 * number) for array in data))
        return all(results)

    good: list[bool] = []
    with cluster(2, servers=2, connections=2) as sessions:
        threads = [threading.Thread(target=lambda n=n: good.append(run(n))) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert good == [True] * 8


BLOCKED = """
    import signal
    import numpy as np
    from byteps.testing import cluster
    from tests.session.arrays import spec, start

    what = spec("x", 1000)
    data = [np.ones(1000, np.float32) for _ in range(2)]

    def answer(number, frame):
        start(sessions[1], what, data[1], data[1])

    signal.signal(signal.SIGUSR1, answer)
    with cluster(2) as sessions:
        handle = start(sessions[0], what, data[0], data[0])
        print("waiting", flush=True)
        try:
            {call}
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    print("closed", data[0][-1], flush=True)
"""


@contextlib.contextmanager
def blocked(call: str) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    """A process of two ranks, and its output; rank 0 is in ``call``, for which rank 1 is missing."""
    command = [sys.executable, "-c", textwrap.dedent(BLOCKED).format(call=call)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "waiting\n"
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.1)
            yield process, process.stdout
            assert process.wait(10) == 0
        finally:
            process.kill()


@pytest.mark.parametrize("call", ["handle.wait()", "sessions[0].barrier()"])
def test_ctrl_c_ends_a_wait(call: str) -> None:
    with blocked(call) as (process, output):
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert output.readline() == "interrupted\n"
        assert time.monotonic() - begin < 1
        assert output.readline() == "closed 1.0\n"


def test_a_wait_goes_on_after_a_signal_handler() -> None:
    with blocked("handle.wait()") as (process, output):
        process.send_signal(signal.SIGUSR1)
        assert output.readline() == "closed 2.0\n"
