"""The recorder: steps, limits, and disks that do not take what it writes."""

from __future__ import annotations

import logging
import os
import threading
import time
from pathlib import Path

import pytest

from byteps.config import Config
from byteps.errors import PeerLost
from byteps.trace import Trace, open_trace, recorder
from byteps.trace.events import Event, pack
from byteps.trace.window import Window

from .timelines import described, load, of, round_trip, spanned

PATIENCE_S = 20.0


class Source:
    """Stands for the native core: gives out events, and tells when it has been asked."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.dropped = 0
        self.asked = threading.Semaphore(0)

    def take(self) -> tuple[bytes, int]:
        events, self.events = self.events, []
        dropped, self.dropped = self.dropped, 0
        self.asked.release()
        return b"".join(map(pack, events)), dropped

    def wait_taken(self) -> None:
        """Until two more takes: whatever was there before is in the spool then."""
        while self.asked.acquire(blocking=False):
            pass
        for _ in range(2):
            assert self.asked.acquire(timeout=PATIENCE_S)


def _started(path: Path | str, source: Source, **settings: object) -> Trace:
    config = Config(timeline=str(path), **settings)  # type: ignore[arg-type]
    trace = open_trace(config, "worker", 0, 2)
    trace.start(source.take, time.time)
    return trace


def _now_round(number: int) -> list[Event]:
    """A round of tensor 1 that takes place now."""
    now_ns = time.monotonic_ns()
    return [(now_ns + i, *event[1:]) for i, event in enumerate(round_trip([1, 2, 3, 4], number=number))]


def _rounds(path: Path) -> list[int]:
    return [event["args"]["round"] for event in load(path) if "round" in event.get("args", {})]


def test_without_a_timeline_nothing_is_recorded_and_no_thread_runs() -> None:
    threads = threading.active_count()
    trace = open_trace(Config(), "worker", 0, 2)
    trace.start(lambda: (b"", 0), time.time)
    trace.mark("ready", "x")
    trace.span("waiting", "x", trace.now_ns())
    trace.close()
    assert type(trace) is Trace
    assert (trace.on, trace.capacity, trace.now_ns()) == (False, 0, 0)
    assert threading.active_count() == threads


def test_marks_and_events_reach_the_file(tmp_path: Path) -> None:
    source = Source()
    trace = _started(tmp_path / "t.json.gz", source)
    trace.name_tensor(1, "gradient.weight")
    trace.mark("ready", "gradient.weight")
    source.events = _now_round(1)
    trace.span("own word", "gradient.weight", trace.now_ns())
    trace.close()
    trace.close()
    events = load(tmp_path / "t.rank0.json.gz")
    assert of(events, ph="e", name="weight")
    assert of(events, ph="X", name="own word weight")
    assert described(tmp_path / "t.rank0.json.gz")["processes"][0]["clock"] == "coordinator"
    assert os.listdir(tmp_path) == ["t.rank0.json.gz"]


def test_a_coordinator_that_does_not_answer_is_done_without(tmp_path: Path) -> None:
    def lost() -> float:
        raise PeerLost("the coordinator was lost")

    trace = open_trace(Config(timeline=str(tmp_path / "t.json.gz")), "worker", 0, 2)
    trace.start(Source().take, lost)
    trace.close()
    assert described(tmp_path / "t.rank0.json.gz")["processes"][0]["clock"] == "own"


def test_what_found_no_room_is_counted_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = Source()
    source.events, source.dropped = _now_round(1), 17
    _started(tmp_path / "t.json.gz", source).close()
    assert described(tmp_path / "t.rank0.json.gz")["processes"][0]["dropped"] == 17
    assert "lacks 17 events" in caplog.text


def test_only_the_steps_asked_for_are_recorded(tmp_path: Path) -> None:
    source = Source()
    trace = _started(tmp_path / "t.json.gz", source, trace_start_step=2, trace_end_step=3)
    assert isinstance(trace, recorder.Recorder)
    assert trace._thread is not None
    for number in (1, 2, 3):
        source.events += _now_round(number)
        source.wait_taken()
        trace.span("step", "", trace.now_ns())
    trace._thread.join(PATIENCE_S)
    assert not trace.on
    source.events += _now_round(4)
    # The file is there although training goes on.
    assert _rounds(tmp_path / "t.rank0.json.gz") == [2, 3]
    trace.close()


@pytest.mark.parametrize(
    ("first", "last", "kept"), [(0, 0, [1, 2, 3, 4]), (2, 0, [2, 3, 4]), (0, 2, [1, 2]), (3, 3, [3])]
)
def test_without_marks_the_rounds_count_as_steps(first: int, last: int, kept: list[int]) -> None:
    events = [
        event
        for n in range(1, 5)
        for event in round_trip([10 * n, 10 * n + 1, 10 * n + 2, 10 * n + 3], number=n)
    ]
    window = Window(first, last)
    cut, _ = window.cut(b"".join(map(pack, events)), [])
    expected = [event for event in events if event[4] in kept]
    # The event that shows that the window is over stands at its end.
    assert cut.startswith(b"".join(map(pack, expected)))
    assert len(cut) <= (len(expected) + 1) * len(pack(events[0]))
    assert window.over == (0 < last < 4)


def test_marks_of_steps_bound_other_marks() -> None:
    window = Window(2, 2)
    steps = [spanned("step", 10 * n, 10 * n + 1) for n in range(1, 4)]
    waits = [spanned("waiting", 10 * n - 5, 10 * n - 1) for n in range(1, 4)]
    _, marks = window.cut(b"", [*steps, *waits])
    assert waits[1] in marks
    assert waits[0] not in marks
    assert waits[2] not in marks


def test_a_timeline_that_is_full_ends_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recorder, "MAX_EVENTS", 4)
    source = Source()
    source.events = _now_round(1)
    trace = _started(tmp_path / "t.json.gz", source)
    assert source.asked.acquire(timeout=PATIENCE_S)
    trace.close()
    assert not trace.on
    assert "trace_start_step" in caplog.text
    assert _rounds(tmp_path / "t.rank0.json.gz") == [1]


def test_a_missing_folder_is_made_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _started(tmp_path / "new" / "folder" / "t.json.gz", Source()).close()
    assert (tmp_path / "new" / "folder" / "t.rank0.json.gz").exists()
    assert "did not exist and was made" in caplog.text


def test_an_unwritable_path_is_a_warning_and_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    trace = _started(tmp_path / "file" / "t.json.gz", Source())
    trace.close()
    assert type(trace) is Trace
    assert "no timeline is recorded" in caplog.text
    assert str(tmp_path / "file") in caplog.text


def _link_to_full(path: Path) -> None:
    path.symlink_to("/dev/full")


@pytest.mark.parametrize("when", ["recording", "writing"])
def test_a_full_disk_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    final = tmp_path / "t.rank0.json.gz"
    source = Source()
    if when == "writing":
        _link_to_full(final)
    trace = _started(tmp_path / "t.json.gz", source)
    if when == "recording":
        assert isinstance(trace, recorder.Recorder)
        monkeypatch.setattr(trace._spool, "_fd", os.open("/dev/full", os.O_WRONLY))
    source.events = _now_round(1)
    with caplog.at_level(logging.WARNING):
        trace.close()
    assert not trace.on
    assert "No space left" in caplog.text
    if when == "writing":
        assert f"byteps trace merge {final}.part" in caplog.text
        assert Path(f"{final}.part").exists()


def test_no_space_at_the_start_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _link_to_full(tmp_path / "t.rank0.json.gz.part")
    assert type(_started(tmp_path / "t.json.gz", Source())) is Trace
    assert "No space left" in caplog.text


def test_a_forked_child_leaves_the_file_alone(tmp_path: Path) -> None:
    source = Source()
    trace = _started(tmp_path / "t.json.gz", source)
    child = os.fork()
    if child == 0:
        trace.abandon()
        trace.mark("ready", "of the child")
        trace.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    source.events = _now_round(1)
    trace.close()
    assert _rounds(tmp_path / "t.rank0.json.gz") == [1]
