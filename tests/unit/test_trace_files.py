"""Merging timelines, and what is left of them when a process is killed."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from byteps.errors import TimelineError
from byteps.trace.merging import merge
from byteps.trace.opening import own_path
from byteps.trace.reading import read_timeline

from .timelines import MS, Recording, described, load, of, round_trip, summing


def _job(folder: Path) -> list[Path]:
    """Two ranks and a server; rank 1's clock reads 3 s less than the others'."""
    late_ns = 10_000_000 * MS
    return [
        Recording(number=0, events=round_trip([1, 2, 3, 9])).timeline(folder / "t.rank0.json.gz"),
        Recording(number=1, events=round_trip([1, 2, 3, 9]), offset_ns=late_ns + 2 * MS).timeline(
            folder / "t.rank1.json.gz"
        ),
        Recording("server", events=summing([4, 6], [0, 1])).timeline(folder / "t.server0.json.gz"),
    ]


def test_merging_puts_all_events_on_one_clock(tmp_path: Path) -> None:
    out = tmp_path / "all.json.gz"
    assert merge(_job(tmp_path), out) == []
    events = load(out)
    pushed = {event["pid"]: event["ts"] for event in of(events, ph="s")}
    assert pushed == {1: 3000, 2: 5000}, "rank 1's clock is 2 ms behind"
    assert [(p["role"], p["number"]) for p in described(out)["processes"]] == [
        ("worker", 0),
        ("worker", 1),
        ("server", 0),
    ]
    for begin in of(events, ph="s"):
        assert len(of(events, ph="t", id=begin["id"])) == len(of(events, ph="f", id=begin["id"])) == 1


def test_merged_timelines_can_be_merged_again(tmp_path: Path) -> None:
    first, second, server = _job(tmp_path)
    merge([first, server], tmp_path / "some.json.gz")
    merge([tmp_path / "some.json.gz", second], tmp_path / "all.json.gz")
    merge([first, second, server], tmp_path / "at_once.json.gz")
    key = lambda event: json.dumps(event, sort_keys=True)  # noqa: E731
    assert sorted(map(key, load(tmp_path / "all.json.gz"))) == sorted(
        map(key, load(tmp_path / "at_once.json.gz"))
    )


def test_two_files_of_one_rank_do_not_belong_together(tmp_path: Path) -> None:
    first, *_ = _job(tmp_path)
    copy = tmp_path / "other.json.gz"
    copy.write_bytes(first.read_bytes())
    with pytest.raises(TimelineError, match="both of worker 0"):
        merge([first, copy], tmp_path / "all.json.gz")
    assert not (tmp_path / "all.json.gz").exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"hello\n",
        b'{"traceEvents":[]}',
        gzip.compress(b"hello"),
        b"\x1f\x8b",
        b'{"displayTimeUnit":"ms","otherData":{"byteps":{"version":1}},"traceEvents":[\n',
        b'{"displayTimeUnit":"ms","otherData":{"byteps":{"version":9,"start_wall_ns":1,"processes":[]}},'
        b'"traceEvents":[\n]}\n',
        bytes(3 << 20),
    ],
)
def test_what_is_no_timeline_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "odd.json.gz"
    path.write_bytes(content)
    with pytest.raises(TimelineError, match=r"odd\.json\.gz"):
        merge([path], tmp_path / "all.json.gz")


def test_the_result_must_not_be_one_of_the_files(tmp_path: Path) -> None:
    first, *_ = _job(tmp_path)
    before = first.read_bytes()
    with pytest.raises(TimelineError, match="another name"):
        merge([first], first)
    assert first.read_bytes() == before


def test_a_full_disk_leaves_no_half_result(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left"):
        merge(_job(tmp_path), Path("/dev/full"))
    assert Path("/dev/full").exists()


def test_a_file_that_is_cut_off_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    many = [event for n in range(1, 2000) for event in round_trip([n, n + 1, n + 2, n + 3], number=n)]
    whole = Recording(events=many).timeline(tmp_path / "t.rank0.json.gz")
    total = len(load(whole))
    cut = tmp_path / "cut.json.gz"
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    (note,) = merge([cut], tmp_path / "all.json.gz")
    assert "ends early" in note
    kept = load(tmp_path / "all.json.gz")
    assert total // 4 < len(kept) < total
    assert str(len(kept)) in note


def test_a_damaged_file_is_read_up_to_the_damage(tmp_path: Path) -> None:
    many = [event for n in range(1, 2000) for event in round_trip([n, n + 1, n + 2, n + 3], number=n)]
    path = Recording(events=many).timeline(tmp_path / "t.rank0.json.gz")
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 100] = bytes(100)
    path.write_bytes(content)
    timeline = read_timeline(path)
    assert list(timeline.lines)
    assert "ends early" in timeline.notes[0]


@pytest.mark.parametrize("missing_bytes", [0, 1, 7])
def test_the_spool_of_a_killed_process_is_a_timeline_too(tmp_path: Path, missing_bytes: int) -> None:
    spool = Recording(events=round_trip([1, 2, 3, 9])).spool(tmp_path / "t.rank0.json.gz.part")
    with spool.open("ab") as file:
        file.write(b"\0\0\0\x40half a record"[: 14 - missing_bytes])
    (note,) = merge([spool], tmp_path / "all.json.gz")
    assert "killed" in note
    assert of(load(tmp_path / "all.json.gz"), ph="e", name="returned")


def test_a_spool_without_a_head_is_no_timeline(tmp_path: Path) -> None:
    spool = Recording().spool(tmp_path / "t.part")
    spool.write_bytes(spool.read_bytes()[:20])
    with pytest.raises(TimelineError, match=r"t\.part"):
        merge([spool], tmp_path / "all.json.gz")


def test_clocks_of_other_hosts_that_were_not_compared_are_mentioned(tmp_path: Path) -> None:
    files = [
        Recording(number=0).timeline(tmp_path / "t.rank0.json.gz"),
        Recording(number=1, host="there", readings=[]).timeline(tmp_path / "t.rank1.json.gz"),
    ]
    (note,) = merge(files, tmp_path / "all.json.gz")
    assert "worker 1" in note


@pytest.mark.parametrize(
    ("file", "own"),
    [
        ("run.json.gz", "run.rank3.json.gz"),
        ("a/run.json", "a/run.rank3.json.gz"),
        ("run.gz", "run.rank3.json.gz"),
        ("run", "run.rank3.json.gz"),
        ("run.v2", "run.v2.rank3.json.gz"),
        ("folder/", "folder/timeline.rank3.json.gz"),
    ],
)
def test_each_process_has_a_file_of_its_own(file: str, own: str) -> None:
    assert str(own_path(file, "worker", 3)) == own
    assert str(own_path(file, "server", 3)) == own.replace("rank", "server")
