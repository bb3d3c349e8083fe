"""Jobs whose data goes through UCX: values, every kind of loss, and what is said where it cannot be used."""

from __future__ import annotations

import subprocess
import sys
import time
from functools import partial

import pytest

from byteps import _native

from .cases import LOSSES, UCX_SM, UCX_TCP, Settings, lose_in_traffic, run_all
from .faults import Ended, FaultyJob

over_each = pytest.mark.parametrize("settings", [UCX_TCP, UCX_SM], ids=["tcp", "sm"])
FAULTS = [case for case in LOSSES if case.how in ("kill", "stop")]
UCX = {"BYTEPS_TRANSPORT": "ucx"}
needs_ucx = pytest.mark.skipif(
    not _native.ucx_is_built(),
    reason="UCX: not built, so this test was NOT RUN: apt-get install libucx-dev, then make setup",
)


HANGS_UP = """
import os, signal
from byteps import _native

heard = []
signal.signal(signal.SIGHUP, lambda number, frame: heard.append(number))
_native.open_ucx(False)
os.kill(os.getpid(), signal.SIGHUP)
assert heard == [signal.SIGHUP], heard
"""


def ends_of_a_start(server: dict[str, str], worker: dict[str, str]) -> dict[str, Ended]:
    """How a server and a worker end that cannot come together."""
    # Who cannot join first waits for word of a lost peer: the coordinator must not take that for a loss.
    settings = {"BYTEPS_FORCE_DISTRIBUTED": "1", "BYTEPS_PEER_TIMEOUT": "10"}
    with FaultyJob(workers=1, servers=1, settings=settings) as job:
        job.start_coordinator()
        job.set(server)
        job.start_server(0)
        job.set(worker)
        job.start_worker(0, "wait")
        return job.ends(time.monotonic() + 20, "coordinator")


@needs_ucx
@pytest.mark.slow
@pytest.mark.timeout(120)
@over_each
def test_whoever_is_lost_the_others_end_with_one_error(settings: Settings) -> None:
    run_all(partial(lose_in_traffic, workers=2), FAULTS, settings)


@needs_ucx
@pytest.mark.slow
@over_each
def test_sums_are_right_and_everybody_leaves_in_order(settings: Settings) -> None:
    with FaultyJob(settings={**settings, "BYTEPS_CONNECTIONS": "2"}) as job:
        job.start_roles()
        for rank in range(2):
            job.start_worker(rank, "steady")
        job.await_text("rate")
        since_s = job.send("worker 0", "leave")
        ended = job.ends(since_s + 10)
        assert {name: (end.code, end.complaints) for name, end in ended.items()} == dict.fromkeys(
            ended, (0, [])
        )


@needs_ucx
def test_a_server_that_is_set_to_tcp_says_so() -> None:
    ended = ends_of_a_start({"BYTEPS_TRANSPORT": "tcp"}, UCX)
    complaint = ended["worker 0"].complaints[-1]
    assert "this server has transport = tcp, the worker ucx" in complaint
    assert "give all processes the same BYTEPS_TRANSPORT" in complaint


@needs_ucx
def test_ends_without_a_common_transport_say_what_to_look_at() -> None:
    ended = ends_of_a_start({**UCX, "UCX_TLS": "sm"}, {**UCX, "UCX_TLS": "tcp"})
    complaint = ended["worker 0"].complaints[-1]
    assert "cannot reach each other through UCX" in complaint
    assert "UCX_TLS" in complaint


@needs_ucx
def test_a_device_that_is_not_there_is_named() -> None:
    ended = ends_of_a_start(UCX, {**UCX, "UCX_NET_DEVICES": "mlx5_7:1", "UCX_TLS": "rc"})
    complaint = ended["worker 0"].complaints[-1]
    assert "transport = ucx, but the worker 0 cannot use it" in complaint
    assert "UCX_NET_DEVICES" in complaint
    assert "/dev/infiniband" in complaint


@needs_ucx
def test_signals_are_still_the_programs_own() -> None:
    subprocess.run([sys.executable, "-c", HANGS_UP], check=True, timeout=30)
