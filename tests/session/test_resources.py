"""What sessions hold on to: nothing after shutdown, little while they run, nothing in a forked child."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from byteps.session import Session
from byteps.testing import run_ranks

from .arrays import exchange, held, job, spec, start
from .sockets import socket_job

ROOT = Path(__file__).resolve().parents[2]


def run_and_leave(make: object, rounds: int) -> None:
    what = spec("x", 50_000)
    for _ in range(rounds):
        with make(3, servers=2, connections=2) as sessions:  # type: ignore[operator]
            results = run_ranks(sessions, lambda one: exchange(one, what, np.ones(what.length, np.float32)))
            assert all(np.all(result == 3) for result in results)


@pytest.mark.parametrize(("make", "rounds"), [(job, 30), (socket_job, 5)], ids=["in process", "sockets"])
def test_jobs_leave_no_thread_and_no_descriptor(make: object, rounds: int) -> None:
    run_and_leave(make, 1)
    gc.collect()
    before = held()
    run_and_leave(make, rounds)
    gc.collect()
    assert held() == before


@pytest.mark.parametrize("make", [job, socket_job], ids=["in process", "sockets"])
def test_descriptors_are_closed_without_the_garbage_collector(make: object) -> None:
    run_and_leave(make, 1)
    gc.collect()
    gc.disable()
    try:
        before = held()
        run_and_leave(make, 2)
        assert held() == before
    finally:
        gc.enable()


def test_a_session_and_its_memory_are_freed() -> None:
    what = spec("x", 1000)
    with job(2) as sessions:
        arrays = [np.ones(1000, np.float32) for _ in sessions]
        handles = [start(one, what, array, array) for one, array in zip(sessions, arrays, strict=True)]
        for handle in handles:
            handle.wait()
        memory = weakref.ref(arrays[0])
        del arrays, handle
        assert memory() is None, "a handle that was waited for holds no memory"
        del handles
        gone = [weakref.ref(session) for session in sessions]
        del sessions
    gc.collect()
    assert [reference() for reference in gone] == [None, None]


def tables(session: Session) -> int:
    """Entries in a session's tables of tensors."""
    known = session.communicator._names  # type: ignore[attr-defined]
    names = ("_tensors", "_declared", "_withdrawn", "_reasons", "_finished")
    return len(session._in_flight) + sum(len(getattr(known, name)) for name in names)


@pytest.mark.parametrize("name", ["", "of the caller"], ids=["unnamed", "named"])
def test_tensors_used_once_do_not_accumulate(name: str) -> None:
    def run(session: Session) -> tuple[int, int]:
        most = 0
        for number in range(700):
            what = spec(name or session.next_name("push_pull"), 10, ephemeral=True)
            result = exchange(session, what, np.full(10, number, np.float32))
            assert np.all(result == 2 * number)
            most = max(most, tables(session))
        return most, len(session._unnamed)

    with job(2, servers=2) as sessions:
        hub = sessions[0]._control._channel._hub  # type: ignore[union-attr]
        for most, counters in run_ranks(sessions, run):
            assert most < 100
            assert counters <= 1
        requests = hub._coordinator._requests
        assert len(requests._table) < 200
        assert len(requests._table._by_id) < 200
        assert sum(len(ids) for ids in requests._declarations._retire.values()) < 600
        assert not requests._declarations._installs
        assert not requests._declarations._questions
        assert max(requests._table._placer.loads) < 200 * 40


def test_rounds_that_nobody_waits_for_are_let_go() -> None:
    def run(session: Session) -> tuple[int, int]:
        kept: list[weakref.ref[np.ndarray[Any, Any]]] = []
        most = 0
        for number in range(400):
            what = spec(session.next_name("push_pull"), 10, ephemeral=True)
            data = np.full(10, number, np.float32)
            kept.append(weakref.ref(data))
            waited = start(session, what, data, data)
            if number % 50 == 0:
                waited.wait()
                most = max(most, tables(session))
        return most, sum(one() is not None for one in kept)

    with job(2) as sessions:
        for most, held_arrays in run_ranks(sessions, run):
            assert most < 300
            assert held_arrays < 150


FORKING = """
    import gc, os, sys, threading
    import numpy as np
    from byteps.errors import PeerLost
    from byteps.testing import run_ranks
    from tests.session.arrays import exchange, spec, start
    from tests.session.sockets import socket_job

    what = spec("x", 200_000)
    def step(session):
        return float(exchange(session, what, np.full(what.length, session.rank + 1, np.float32))[-1])

    with socket_job(2, servers=2, connections=2, peer_timeout_s=1, heartbeat_s=0.1) as sessions:
        print(run_ranks(sessions, step), flush=True)
        data = np.ones(10, np.float32)
        in_flight = start(sessions[0], spec("over a fork", 10), data, data)
        child = os.fork()
        if child == 0:
            for session in sessions:
                for call in (lambda: step(session), session.barrier, lambda: session.declare([spec("y", 1)])):
                    try:
                        call()
                    except PeerLost as error:
                        assert "forked" in str(error), error
                    else:
                        raise AssertionError("a forked child must not communicate")
                session.shutdown()
            del session
            {leave}
        print(run_ranks(sessions, step), flush=True)
        assert os.waitpid(child, 0)[1] == 0, "the child failed"
        threading.Event().wait(1.5)  # longer than peer_timeout_s: heartbeats go on
        print(run_ranks(sessions, step), flush=True)
        exchange(sessions[1], spec("over a fork", 10), data.copy())
        in_flight.wait()
        print(data[0], flush=True)
"""


@pytest.mark.parametrize(
    "leave", ["os._exit(0)", "sys.exit(0)", "del sessions, in_flight; gc.collect(); os._exit(0)"]
)
def test_a_forked_child_disturbs_nobody(leave: str) -> None:
    script = textwrap.dedent(FORKING).format(leave=leave)
    command = [sys.executable, "-c", script]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=40, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout == "[3.0, 3.0]\n" * 3 + "2.0\n"


def test_a_process_may_end_without_shutdown() -> None:
    script = """
        from byteps.testing import cluster
        import numpy as np
        from byteps.session import Buffer
        from byteps.wire import TensorSpec
        context = cluster(2, servers=2)
        sessions = context.__enter__()
        data = np.ones(1000, np.float32)
        memory = Buffer(data.ctypes.data, data.nbytes, data)
        handle = sessions[0].submit(TensorSpec("x", 1, (1000,), 0), memory, memory)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert (result.returncode, result.stderr) == (0, "")
