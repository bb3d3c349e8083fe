"""A job of threads traces itself: every partition with all its stages, every arrow with both ends."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from byteps.adapters.basics import start_timeline, stop_timeline
from byteps.dtypes import CELL_BYTES
from byteps.session import Session
from byteps.testing import run_ranks
from byteps.trace.history import read_history
from byteps.trace.merging import merge
from byteps.trace.reading import read_timeline
from byteps.trace.summary import summarise
from tests.unit.timelines import described, load, of

from .arrays import exchange, job, spec, start

RANKS, SERVERS, ROUNDS = 3, 2, 4
LENGTHS = {"small": 10, "large": 7 * CELL_BYTES // 4 + 3}
STAGES = ("ready", "queued", "pushed", "returned")


def _train(session: Session) -> None:
    for number in range(ROUNDS):
        pending = []
        for name, length in LENGTHS.items():
            values = np.full(length, number, np.float32)
            session.trace.mark("ready", name)
            pending.append((values, start(session, spec(name, length), values, values, priority=length)))
        for _, handle in pending:
            handle.wait()
        session.trace.mark("updated")
    # A rank with nothing to give and one that wants nothing take part as well.
    source = None if session.rank == 0 else np.ones(5, np.float32)
    exchange(session, spec("uneven", 5), source)


def _recorded(folder: Path) -> list[dict[str, Any]]:
    with job(RANKS, SERVERS, timeline=str(folder / "t.json.gz")) as sessions:
        run_ranks(sessions, _train)
        assert all(session.trace.on for session in sessions)
    files = sorted(folder.iterdir())
    expected = [f"t.rank{n}.json.gz" for n in range(RANKS)] + [f"t.server{n}.json.gz" for n in range(SERVERS)]
    assert [file.name for file in files] == expected
    assert merge(files, folder / "all.json.gz") == []
    return load(folder / "all.json.gz")


def _spans(events: list[dict[str, Any]]) -> dict[str, list[tuple[str, float, float]]]:
    """By id: (name, begin, end); every begin must have its end."""
    begun: dict[str, list[dict[str, Any]]] = defaultdict(list)
    spans: dict[str, list[tuple[str, float, float]]] = defaultdict(list)
    for event in of(events, cat="byteps"):
        if event["ph"] == "b":
            begun[event["id"]].append(event)
        else:
            begin = begun[event["id"]].pop()
            assert begin["name"] == event["name"]
            spans[event["id"]].append((event["name"], begin["ts"], event["ts"]))
    assert not any(begun.values())
    return spans


def test_every_partition_passes_all_stages_and_every_arrow_arrives(tmp_path: Path) -> None:
    events = _recorded(tmp_path)
    spans = _spans(events)
    parts = {name: len({e["args"]["partition"] for e in of(events, ph="b", name=name)}) for name in LENGTHS}
    assert parts["large"] > parts["small"] == 1
    at_workers = {identity: found for identity, found in spans.items() if identity.startswith("r")}
    sums = {identity.partition(".")[2]: found for identity, found in spans.items() if identity[0] == "s"}
    rounds = ROUNDS * sum(parts.values()) + 1
    assert len(at_workers) == RANKS * rounds
    assert len(sums) == rounds
    for identity, found in at_workers.items():
        assert [name for name, _, _ in found[:-1]] == list(STAGES)
        times = [found[0][1], *(end for _, _, end in found[:-1])]
        assert times == sorted(times), f"{identity} passes its stages in order"
        assert found[-1][1:] == (times[0], times[-1])
        summed = next(end for name, _, end in sums[identity.partition(".")[2]] if name == "summed")
        assert times[2] <= summed <= times[-1], "the sum lies between the push and the result"
    starts, steps, ends = ({e["id"] for e in of(events, ph=phase)} for phase in "stf")
    assert starts == steps == ends
    assert len(starts) == RANKS * rounds


def test_the_adapters_marks_and_waits_are_in_it(tmp_path: Path) -> None:
    events = _recorded(tmp_path)
    assert len(of(events, cat="updated")) == RANKS * ROUNDS
    waits = of(events, cat="waiting")
    assert {wait["args"]["tensor"] for wait in waits} <= {*LENGTHS, "uneven"}
    assert waits
    clocks = {process["clock"] for process in described(tmp_path / "all.json.gz")["processes"]}
    assert clocks == {"coordinator"}


def test_a_job_whose_timeline_cannot_be_written_trains_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with job(2, 1, timeline=str(tmp_path / "file" / "t.json.gz")) as sessions:
        results = run_ranks(sessions, lambda s: exchange(s, spec("x", 3), np.ones(3, np.float32)).tolist())
    assert results == [[2.0] * 3] * 2


def test_collectives_of_an_all_reduce_job_are_in_it(tmp_path: Path) -> None:
    with job(RANKS, communicator="allreduce", timeline=str(tmp_path / "t.json.gz")) as sessions:
        run_ranks(sessions, _train)
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == [f"t.rank{number}.json.gz" for number in range(RANKS)]
    for file in files:
        collectives = of(load(file), cat="collective")
        assert {one["args"]["tensor"] for one in collectives} == {*LENGTHS, "uneven"}
        assert len(collectives) >= ROUNDS * len(LENGTHS) + 1


def test_a_program_starts_and_stops_timelines(tmp_path: Path) -> None:
    """Each has what happened while it was recorded, under names that were declared before."""

    def work(session: Session) -> None:
        _train(session)
        for number in range(2):
            start_timeline(str(tmp_path / f"t{number}.json"), session=session)
            with pytest.raises(ValueError, match="recorded already"):
                start_timeline(str(tmp_path / "other.json"), session=session)
            for _ in range(1 + number):
                _train(session)
            stop_timeline(session=session)
            stop_timeline(session=session)
            _train(session)
        blocked = tmp_path / f"file{session.rank}"
        blocked.touch()
        with pytest.raises(OSError, match="exists"):
            start_timeline(str(blocked / "t.json"), session=session)

    with job(2, 1, timeline="DYNAMIC") as sessions:
        run_ranks(sessions, work)
    for number in range(2):
        files = [tmp_path / f"t{number}.rank{rank}.json.gz" for rank in range(2)]
        for file in files:
            rounds = [one["args"]["round"] for one in of(load(file), ph="b", name="small")]
            first = ROUNDS * (1 + 2 * number) + 1
            assert rounds == list(range(first, first + ROUNDS * (1 + number)))
        summary = summarise(read_history([read_timeline(file) for file in files]))
        assert {tensor.name for tensor in summary.tensors} == {*LENGTHS, "uneven"}
    assert len(list(tmp_path.iterdir())) == 4 + 2


def test_a_timeline_is_started_only_where_that_was_said_before(tmp_path: Path) -> None:
    with job(1) as sessions, pytest.raises(ValueError, match="BYTEPS_TIMELINE=DYNAMIC"):
        start_timeline(str(tmp_path / "t.json"), session=sessions[0])
