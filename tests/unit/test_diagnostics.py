"""The sentences about rounds in flight, and the dump on SIGUSR1."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap

import pytest

from byteps.diagnostics import DumpOnSignal, OpenRound, Round, describe_open, describe_rounds, size, stall
from byteps.diagnostics.wording import user_name


@pytest.mark.parametrize(
    ("late", "who"),
    [
        ([(5, 3.2)], "rank 5, last heard 3.2 s ago"),
        ([(5, float("inf"))], "rank 5, not heard yet"),
        ([(1, 0.04), (5, 3.2)], "ranks 1 (last heard 0.0 s ago) and 5 (last heard 3.2 s ago)"),
        ([(1, 1.0), (2, 2.0), (3, 3.0)], "ranks 1 (last heard 1.0 s ago), 2 (last heard 2.0 s ago) and 3 ("),
        ([(rank, 1.0) for rank in range(30)], "19 (last heard 1.0 s ago) and 10 more"),
        ([], "the result (all ranks have contributed)"),
    ],
)
def test_a_stall_is_one_sentence(late: list[tuple[int, float]], who: str) -> None:
    text = stall("push_pull.layer4.weight", 812, late, 10.4)
    assert text.startswith("step 812, layer4.weight: waiting for ")
    assert who in text
    assert text.endswith(", 10 s so far")
    assert "\n" not in text


def test_the_sentence_as_documented() -> None:
    text = stall("gradient.layer4.weight", 812, [(5, 3.2)], 10)
    assert text == "step 812, layer4.weight: waiting for rank 5, last heard 3.2 s ago, 10 s so far"
    assert stall("x", 1, None, 10) == "step 1, x: who is late is not known, 10 s so far"


@pytest.mark.parametrize(
    ("wire", "shown"),
    [
        ("push_pull.a", "a"),
        ("gradient.layer1.weight", "layer1.weight"),
        ("push_pull.noname.3", "push_pull.noname.3"),
        ("gradient[1].layer1.weight", "gradient[1].layer1.weight"),
        ("broadcast.a", "broadcast.a"),
        ("a", "a"),
    ],
)
def test_tensors_have_the_names_that_the_user_gave(wire: str, shown: str) -> None:
    assert user_name(wire) == shown


def test_rounds_are_listed_the_oldest_first() -> None:
    rounds = [
        Round("push_pull.young", 2, 100, 0.5, 1, []),
        Round("gradient.old", 7, 4 << 20, 12.25, 3, [(1, 0.5)]),
        Round("x", 1, 2048, 1.0, 2, None),
    ]
    late = "waiting for rank 1, last heard 0.5 s ago"
    assert describe_rounds(rounds) == [
        f"step 7, old: 4.0 MiB, in flight for 12.2 s, 3 partitions unresolved, {late}",
        "step 1, x: 2.0 KiB, in flight for 1.0 s, 2 partitions unresolved, who is late is not known",
        "step 2, young: 100 B, in flight for 0.5 s, 1 partition unresolved, "
        "waiting for the result (all ranks have contributed)",
    ]


def test_open_rounds_are_grouped_by_whom_they_wait_for() -> None:
    rounds = [OpenRound("gradient.w", 3, index, 65536, [1]) for index in (4, 0, 2, 1)]
    rounds += [OpenRound("gradient.w", 3, 9, 100, [0, 2]), OpenRound("a", 1, 0, 4, [])]
    assert describe_open(rounds) == [
        "step 1, a: partition 0, 4 B, waiting for nobody",
        "step 3, w: partition 9, 100 B, waiting for ranks 0 and 2",
        "step 3, w: partitions 0-2, 4, 256.0 KiB, waiting for rank 1",
    ]


@pytest.mark.parametrize(("nbytes", "text"), [(0, "0 B"), (1023, "1023 B"), (1 << 30, "1.0 GiB")])
def test_sizes_are_readable(nbytes: int, text: str) -> None:
    assert size(nbytes) == text


PROGRAM = """
import ctypes, faulthandler, os, signal, sys, threading
from byteps.diagnostics import DumpOnSignal

reports = []
reported = threading.Event()

def report():
    reports.append(1)
    threading.Timer(0.1, reported.set).start()
    return ["three tensors in flight"]

def kick(pid=None):
    os.kill(pid or os.getpid(), signal.SIGUSR1)

"""


def run(body: str) -> tuple[int, str, str]:
    """Run a program; its exit code, stdout and stderr."""
    program = PROGRAM + textwrap.dedent(body)
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False
    )
    return ended.returncode, ended.stdout, ended.stderr


def test_the_dump_has_stacks_and_the_report() -> None:
    code, _, errors = run(
        """
        dump = DumpOnSignal("rank 1 of 4", report)
        def where_it_is():
            kick()
            assert reported.wait(10)
        where_it_is()
        dump.close()
        """
    )
    assert code == 0, errors
    assert re.match(r"byteps: rank 1 of 4, pid \d+, Python stacks:\n", errors)
    assert "in where_it_is" in errors
    assert re.search(r"\nbyteps: rank 1 of 4, pid \d+:\n  three tensors in flight\n", errors)


def test_a_dump_comes_while_the_main_thread_is_in_c() -> None:
    """Python's own handlers would wait until the call is over."""
    code, output, errors = run(
        """
        import hashlib
        DumpOnSignal("worker", report)
        threading.Timer(0.1, kick).start()
        threading.Thread(target=lambda: (reported.wait(), print("reported", flush=True))).start()
        hashlib.pbkdf2_hmac("sha256", b"", b"", 6_000_000)
        print("returned", flush=True)
        """
    )
    assert code == 0, errors
    assert "three tensors in flight" in errors
    assert output == "reported\nreturned\n"


def test_many_signals_are_all_answered() -> None:
    code, _, errors = run(
        """
        dump = DumpOnSignal("worker", report)
        for _ in range(3):
            reported.clear()
            kick()
            assert reported.wait(10)
        dump.close()
        """
    )
    assert code == 0, errors
    assert errors.count("three tensors in flight") == 3


def test_a_report_that_fails_does_not_end_the_dumps() -> None:
    code, _, errors = run(
        """
        def broken():
            reported.set()
            raise RuntimeError("dictionary changed size")
        dump = DumpOnSignal("worker", broken)
        for _ in range(2):
            reported.clear()
            kick()
            assert reported.wait(10)
        dump.close()
        """
    )
    assert code == 0, errors
    assert errors.count("no report: RuntimeError: dictionary changed size") == 2


@pytest.mark.parametrize(
    "install",
    ["signal.signal(signal.SIGUSR1, mine)", "faulthandler.register(signal.SIGUSR1, file=sys.stdout)"],
)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_handler_of_the_users_own_stays(install: str, when: str) -> None:
    steps = [install, 'dump = DumpOnSignal("worker", report)']
    code, output, errors = run(
        "\n".join(
            [
                "def mine(*_): print('mine', flush=True)",
                *(steps if when == "before" else steps[::-1]),
                "kick()",
                "dump.close()",
                "kick()" if "signal.signal" in install else "",
                "print(len(reports))",
            ]
        )
    )
    assert code == 0, errors
    assert output.splitlines()[-1] == "0"
    assert output.count("mine") == 2 if "signal.signal" in install else "most recent call first" in output
    assert errors == ""


def test_the_signal_is_given_back() -> None:
    code, output, errors = run(
        """
        for _ in range(3):
            before = len(os.listdir("/proc/self/fd"))
            dump = DumpOnSignal("worker", report)
            assert dump.installed
            assert not DumpOnSignal("another", report).installed
            dump.close()
            dump.close()
            assert not dump.installed
            assert len(os.listdir("/proc/self/fd")) == before
            assert threading.active_count() == 1
        print("now")
        sys.stdout.flush()
        kick()
        """
    )
    assert (code, output) == (-signal.SIGUSR1, "now\n"), errors


def test_a_forked_child_shows_itself_and_not_its_parent() -> None:
    code, _, errors = run(
        """
        dump = DumpOnSignal("worker", report)
        os.register_at_fork(after_in_child=dump.abandon)
        def in_the_child():
            kick()
            os._exit(0)
        child = os.fork() or in_the_child()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert dump.installed
        dump.close()
        assert not reports
        """
    )
    assert code == 0, errors
    assert "in in_the_child" in errors
    assert "byteps: worker" not in errors


def test_nothing_is_left_in_this_process() -> None:
    before = len(os.listdir("/proc/self/fd"))
    DumpOnSignal("worker", list).close()
    assert len(os.listdir("/proc/self/fd")) == before
