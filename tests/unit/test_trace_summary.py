"""Where the time went: summaries of hand-made timelines, whose answers are known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from byteps.cli import main
from byteps.trace.history import Partition, RankHistory, Wait, read_history
from byteps.trace.reading import read_timeline
from byteps.trace.summary import Summary, link_use, stall_by_tensor, step_intervals, summarise, union

from .timelines import Recording, ready, round_trip, spanned, summing

STEP_MS = 100.0
STEPS = 4


def _rank(number: int) -> Recording:
    """Steps of 100 ms: "second" ready at 40, back at 60; "first" ready at 50, back at 80, noticed at 82.

    The training thread computes until 60, and waits until 82; then it updates until 100.
    """
    events, marks = [], []
    for step in range(STEPS):
        at = step * STEP_MS
        marks += [ready(at + 40, "gradient.second"), ready(at + 50, "gradient.first")]
        events += round_trip([at + 41, at + 42, at + 45, at + 60], tensor=2, number=step + 1, nbytes=3000)
        events += round_trip([at + 51, at + 60, at + 62, at + 80], tensor=1, number=step + 1, nbytes=1000)
        marks.append(spanned("waiting", at + 60, at + 82, "gradient.second"))
        marks.append(
            spanned("waiting", at + 10, at + 90, "gradient.first", thread=5)
        )  # of no training thread
        marks.append(spanned("step", at + 60, at + 100))
    return Recording(number=number, events=events, marks=marks)


def _server() -> Recording:
    events = []
    for step in range(STEPS):
        at = step * STEP_MS
        events += summing([at + 46, at + 50], [0, 1], tensor=2, number=step + 1)
        events += summing([at + 63, at + 72], [0, 1], tensor=1, number=step + 1)
    return Recording("server", events=events)


def _files(folder: Path, servers: bool = True) -> list[Path]:
    files = [_rank(number).timeline(folder / f"t.rank{number}.json.gz") for number in (0, 1)]
    return [*files, _server().timeline(folder / "t.server0.json.gz")] if servers else files


def _summary(files: list[Path]) -> Summary:
    return summarise(read_history([read_timeline(file) for file in files]))


def test_steps_are_compute_and_exposed_communication(tmp_path: Path) -> None:
    summary = _summary(_files(tmp_path))
    assert summary.marked
    assert [rank.rank for rank in summary.ranks] == [0, 1]
    for rank in summary.ranks:
        assert rank.steps == STEPS - 1, "the first step's begin is not known"
        assert rank.step_us == pytest.approx(100_000)
        assert rank.exposed_us == pytest.approx(22_000)
        assert rank.compute_us == pytest.approx(78_000)
        assert rank.busy_us == pytest.approx(38_000), "in flight from 42 to 80"


def test_stalls_belong_to_the_tensor_whose_result_ended_them(tmp_path: Path) -> None:
    tensors = {tensor.name: tensor for tensor in _summary(_files(tmp_path)).tensors}
    assert list(tensors) == ["first", "second"]
    first = tensors["first"]
    assert first.stall_us == pytest.approx(22_000)
    assert tensors["second"].stall_us == pytest.approx(0)
    stages = (first.ready_us, first.queued_us, first.pushed_us, first.summed_us, first.returned_us)
    assert stages == pytest.approx((1000, 9000, 2000, 10_000, 8000))
    assert (first.nbytes, tensors["second"].nbytes) == (1000, 3000)


def test_without_servers_the_way_back_begins_with_the_push(tmp_path: Path) -> None:
    summary = _summary(_files(tmp_path, servers=False))
    assert (summary.servers, summary.latest) == ([], {})
    first = summary.tensors[0]
    assert (first.summed_us, first.returned_us) == pytest.approx((0, 18_000))


def test_who_is_late_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = _files(tmp_path)
    summary = _summary(files)
    assert summary.latest == {1: 1.0}
    assert summary.spread_us == pytest.approx((4000 + 9000) / 2)
    assert main(["trace", "summary", *map(str, files)]) == 0
    text = capsys.readouterr().out
    assert "A step takes 100 ms: 78.00 ms of compute and 22.00 ms (22%) of communication" in text
    assert "Rank 1 is the last to contribute to 100% of all sums" in text
    assert "waiting for the last rank's contribution" in text


def test_steps_without_marks_are_rounds(tmp_path: Path) -> None:
    recording = _rank(0)
    recording.marks = [mark for mark in recording.marks if mark[2] != "step"]
    summary = _summary([recording.timeline(tmp_path / "t.json.gz")])
    assert not summary.marked
    (rank,) = summary.ranks
    # From one readiness of a tensor to the next; the last round ends with its result.
    assert rank.steps == STEPS - 1
    assert rank.step_us == pytest.approx((200_000 + 40_000) / 3, rel=0.02)


def test_one_step_is_better_than_none() -> None:
    partition = Partition(0, "x", 1, 10, 0, ready=100, queued=110, pushing=120, pushed=130, returned=500)
    assert step_intervals(RankHistory(0, [partition])) == [(100, 500)]
    assert step_intervals(RankHistory(0)) == []


def test_a_wait_goes_to_each_result_that_came_within_it() -> None:
    rank = RankHistory(0)
    for name, back in (("a", 10.0), ("b", 30.0), ("c", 70.0)):
        rank.partitions.append(Partition(0, name, 1, 10, 0, ready=0, returned=back))
    rank.waits = [Wait("c", 1, 20.0, 75.0)]
    assert stall_by_tensor(rank, [(20.0, 75.0)]) == {"b": 10.0, "c": 45.0}


def test_utilisation_is_bytes_over_the_best_rate() -> None:
    # 100 ms at full rate in a second of which the rest is idle.
    moved = [(500_000.0 + 1000 * i, 1000) for i in range(1, 101)]
    use = link_use(moved, 1_000_000.0)
    assert use.nbytes == 100_000
    assert use.best_rate == pytest.approx(1e6)
    assert use.utilisation == pytest.approx(0.1)
    assert link_use([], 0.0).utilisation == 0.0


def test_union_has_no_overlaps() -> None:
    assert union([(5, 7), (1, 3), (2, 4), (7, 8)]) == [(1, 4), (5, 8)]


def test_json_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "all.json.gz"
    assert main(["trace", "merge", *map(str, _files(tmp_path)), "-o", str(out)]) == 0
    assert "ui.perfetto.dev" in capsys.readouterr().err
    assert main(["trace", "summary", str(out), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert [rank["exposed_us"] for rank in summary["ranks"]] == pytest.approx([22_000, 22_000])
    assert summary["tensors"][0]["name"] == "first"


def test_nothing_to_summarise_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = _server().timeline(tmp_path / "t.server0.json.gz")
    assert main(["trace", "summary", str(server)]) == 1
    assert "no worker's timeline" in capsys.readouterr().err


def test_a_missing_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "summary", str(tmp_path / "none.json.gz")]) == 1
    assert "none.json.gz" in capsys.readouterr().err
