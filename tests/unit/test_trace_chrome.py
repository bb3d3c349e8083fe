"""The Chrome trace that is made of a recording."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from byteps.trace.chrome import convert
from byteps.trace.clock import Mapping, Reading, measure
from byteps.trace.spool import Batch, read_spool

from .timelines import (
    MS,
    START_NS,
    Recording,
    at,
    described,
    load,
    of,
    ready,
    round_trip,
    spanned,
    summing,
)


def _spans(events: list[dict[str, Any]], identity: str) -> list[tuple[str, float, float]]:
    """The asynchronous events of an id as (name, begin, end), outer ones first; checks that they nest."""
    found: list[tuple[str, float, float]] = []
    stack: list[tuple[str, float, int]] = []
    for event in of(events, id=identity, cat="byteps"):
        if event["ph"] == "b":
            stack.append((event["name"], event["ts"], len(found)))
            found.append(("", 0, 0))
        else:
            name, begin, place = stack.pop()
            assert event["name"] == name, "every end belongs to the last begin"
            found[place] = (name, begin, event["ts"])
    assert not stack, "every begin has its end"
    return found


def test_a_workers_partition_shows_its_stages_in_order(tmp_path: Path) -> None:
    recording = Recording(events=round_trip([2, 3, 4, 7]), marks=[ready(1)])
    events = load(recording.timeline(tmp_path / "t.json.gz"))
    assert _spans(events, "r0.1.0.1") == [
        ("first", 1000, 7000),
        ("ready", 1000, 2000),
        ("queued", 2000, 3000),
        ("pushed", 3000, 4000),
        ("returned", 4000, 7000),
    ]
    (outer,) = of(events, ph="b", name="first")
    assert outer["args"] == {"partition": 0, "round": 1, "bytes": 1000, "server": 0}


def test_partitions_that_overlap_have_events_of_their_own(tmp_path: Path) -> None:
    recording = Recording(events=[*round_trip([1, 2, 5, 9]), *round_trip([1, 3, 4, 8], partition=1)])
    events = load(recording.timeline(tmp_path / "t.json.gz"))
    assert _spans(events, "r0.1.0.1")[0] == ("first", 1000, 9000)
    assert _spans(events, "r0.1.1.1")[0] == ("first", 1000, 8000)


def test_arrows_lead_from_worker_over_server_to_worker(tmp_path: Path) -> None:
    worker = Recording(number=1, events=round_trip([1, 2, 3, 6])).timeline(tmp_path / "w.json.gz")
    server = Recording("server", events=summing([3.5, 5], [1, 0])).timeline(tmp_path / "s.json.gz")
    at_worker, at_server = load(worker), load(server)
    begin, end = of(at_worker, ph="s"), of(at_worker, ph="f")
    (via,) = [step for step in of(at_server, ph="t") if step["id"] == begin[0]["id"]]
    assert [event["ts"] for event in (*begin, via, *end)] == [3000, 5000, 6000]
    assert begin[0]["id"] == end[0]["id"]
    assert {(event["cat"], event["name"]) for event in (*begin, via, *end)} == {("flow", "sum")}
    for events in (at_worker, at_server):  # viewers drop an arrow that hangs on nothing
        for i, event in enumerate(events):
            if event["ph"] in "sf":
                assert (events[i - 1]["ph"], events[i - 1]["ts"]) == ("X", event["ts"])


def test_a_sum_begins_with_the_first_contribution(tmp_path: Path) -> None:
    events = load(Recording("server", 3, summing([3, 5], [1, 0])).timeline(tmp_path / "s.json.gz"))
    assert _spans(events, "s3.1.0.1") == [("first", 3000, 5000), ("summed", 3000, 5000)]
    assert of(events, ph="b", name="first")[0]["args"].items() >= {"first": 1, "last": 0}.items()


def test_processes_and_threads_have_names(tmp_path: Path) -> None:
    recording = Recording(number=4, marks=[spanned("waiting", 1, 2, "gradient.first")])
    events = load(recording.timeline(tmp_path / "t.json.gz"))
    names = {(e["name"], e["args"].get("name")) for e in of(events, ph="M")}
    assert ("process_name", "rank 4 (here)") in names
    assert {("thread_name", n) for n in ("pushes", "results", "training thread 0")} <= names
    (wait,) = of(events, cat="waiting")
    assert (wait["name"], wait["ts"], wait["dur"]) == ("waiting first", 1000, 1000)


def test_steps_are_counted(tmp_path: Path) -> None:
    recording = Recording(marks=[spanned("step", 1, 2), spanned("step", 5, 6)])
    events = load(recording.timeline(tmp_path / "t.json.gz"))
    assert [event["name"] for event in of(events, cat="step")] == ["step 1", "step 2"]


def test_what_is_under_way_at_the_end_is_shown_as_unfinished(tmp_path: Path) -> None:
    recording = Recording(events=round_trip([1, 2]), marks=[spanned("waiting", 1, 8)])
    events = load(recording.timeline(tmp_path / "t.json.gz"))
    assert _spans(events, "r0.1.0.1")[0] == ("first", 1000, 8000)
    assert of(events, ph="b", name="first")[0]["args"]["unfinished"] is True


def test_a_partition_whose_begin_was_not_recorded_is_left_out(tmp_path: Path) -> None:
    recording = Recording(events=round_trip([1, 2, 3, 4])[2:])
    assert not of(load(recording.timeline(tmp_path / "t.json.gz")), cat="byteps")


def test_a_tensor_that_is_ready_twice_begins_with_each_rounds_own_mark(tmp_path: Path) -> None:
    events = [*round_trip([2, 3, 4, 5]), *round_trip([8, 9, 10, 11], number=2)]
    recording = Recording(events=events, marks=[ready(1), ready(1.5), ready(6), ready(7)])
    timeline = load(recording.timeline(tmp_path / "t.json.gz"))
    assert [of(timeline, ph="b", name="ready")[i]["ts"] for i in (0, 1)] == [1000, 6000]


@pytest.mark.parametrize("name", ['quote"backslash\\', "Gewicht.ä", "line\nbreak"])
def test_names_are_escaped(tmp_path: Path, name: str) -> None:
    marks = [ready(1, name), spanned("waiting", 1, 2, name)]
    recording = Recording(events=round_trip([1, 2, 3, 4], tensor=9), marks=marks)
    spool = recording.spool(tmp_path / "t.part")
    names = [record for record in read_spool(spool) if isinstance(record, Batch)]
    assert names[0].marks[0][3] == name
    convert(spool, tmp_path / "t.json.gz")
    assert of(load(tmp_path / "t.json.gz"), name=f"waiting {name}")


def test_the_file_states_its_clock(tmp_path: Path) -> None:
    path = Recording(offset_ns=42 * MS).timeline(tmp_path / "t.json.gz")
    description = described(path)
    (process,) = description["processes"]
    assert description["start_wall_ns"] == START_NS + 42 * MS
    assert (process["clock"], process["offset_ns"], process["uncertainty_ns"]) == (
        "coordinator",
        42 * MS,
        1000,
    )


def test_without_a_reading_the_own_clock_counts_and_is_said_to(tmp_path: Path) -> None:
    path = Recording(readings=[]).timeline(tmp_path / "t.json.gz")
    assert described(path)["processes"][0]["clock"] == "own"


def test_clocks_that_drift_apart_are_followed(tmp_path: Path) -> None:
    readings = [Reading(at(0), 100, 10), Reading(at(10), 100 + MS, 10), Reading(at(5), 999 * MS, 10_000)]
    mapping = Mapping(readings)
    assert mapping.wall_ns(at(0)) == at(0) + 100
    assert mapping.wall_ns(at(5)) == at(5) + 100 + MS // 2, "an uncertain reading does not count"
    assert mapping.wall_ns(at(10)) == at(10) + 100 + MS
    assert mapping.wall_ns(at(20)) == at(20) + 100 + MS, "after the last reading its offset stays"
    assert mapping.wall_ns(at(2.5)) == at(2.5) + 100 + MS // 4, "moments may come out of order"


def test_of_several_round_trips_the_shortest_tells() -> None:
    answers = Counter[str]()

    def ask() -> float:
        answers["asked"] += 1
        return 1000.0

    reading = measure(ask)
    assert answers["asked"] > 1
    assert reading.at_ns + reading.offset_ns == 1000 * 1_000_000_000
    assert 0 <= reading.uncertainty_ns < 1_000_000_000
