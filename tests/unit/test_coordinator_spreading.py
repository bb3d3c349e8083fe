"""When tensors go over to a second connection, and what ranks and servers are told then."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from byteps.coordinator.core import Coordinator
from byteps.wire import (
    Agreed,
    Finished,
    Install,
    JobSettings,
    Join,
    JoinRefused,
    Knobs,
    Measured,
    Placement,
    Proceed,
    Retune,
    Taken,
    TuningSettings,
    Welcome,
)

from .fake_job import SERVER_IDS, FakeJob, join, spec

WORKERS, SERVERS = 2, 2
RATE = 1.5e9
AUTOMATIC = JobSettings(0, 128 << 10, False)
SPECS = [spec("small", (300,)), spec("large", (4_000_000,))]


class FastJob(FakeJob):
    """A job whose workers have hosts of their own, with two tensors that all ranks use."""

    def __init__(self, settings: JobSettings = AUTOMATIC, folder: Path | None = None) -> None:
        super().__init__(WORKERS, SERVERS)
        self.core = Coordinator(
            WORKERS,
            SERVERS,
            lambda: self.now_s,
            later=lambda work, deliver: self.take(deliver(work())),
            tune_folder=folder,
            connection_rate=RATE,
        )
        for server in range(SERVERS):
            self.send(SERVER_IDS + server, self.apart(server, "server"))
        for rank in range(WORKERS):
            self.send(rank, msgspec.structs.replace(self.apart(rank, "worker"), settings=settings))
        (self.welcome,) = self.got(0, Welcome)
        self.inbox.clear()

    @staticmethod
    def apart(number: int, role: str) -> Join:
        changes = {"address": f"{role} {number}", "may_add_lanes": True}
        return msgspec.structs.replace(join(number, role=role), **changes)

    def declared(self) -> list[Placement]:
        """Every rank declares both tensors."""
        for rank in range(WORKERS):
            self.declare(rank, *SPECS)
            self.install_all()
        return [answer for answer in self.answers(0) if isinstance(answer, Placement)]

    def measured(self, rate: float, ids: list[int]) -> Retune:
        """Rank 0 reports a rate; returns what it is told to do next."""
        number = max((one.number for one in self.got(0, Retune)), default=0)
        self.send(0, Measured(number, [0.5] * 4, False, ids, rate, 0.0))
        self.install_all()
        return self.got(0, Retune)[-1]

    def finish(self, asked: Retune) -> None:
        """All ranks take note of a change, and go over."""
        self.send(0, Agreed(asked.number, [7] * len(asked.moves)))
        self.send(1, Taken(asked.number))
        assert self.got(0, Proceed)[-1] == Proceed(asked.number)
        for rank in range(WORKERS):
            self.send(rank, Finished([move.old for move in asked.moves if move.old != move.new]))


def lanes_of(placements: list[Placement]) -> set[int]:
    return {part.lane for placement in placements for part in placement.parts}


def test_tensors_go_over_once_two_reports_in_a_row_are_of_a_high_rate() -> None:
    job = FastJob()
    assert (job.welcome.settings.lanes, job.welcome.settings.spare_lanes) == (2, 1)
    before = job.declared()
    assert lanes_of(before) == {0}
    ids = [placement.id for placement in before]
    for rate in (0.0, RATE, RATE / 2, RATE):
        assert job.measured(rate, ids).moves == []
    asked = job.measured(2 * RATE, ids)
    assert [move.old for move in asked.moves] == ids
    for move, placement in zip(asked.moves, before, strict=True):
        assert [(server, nbytes) for server, _, nbytes in move.parts] == [
            (part.server, part.nbytes) for part in placement.parts
        ]
    assert {lane for _, lane, _ in asked.moves[1].parts} == {0, 1}
    job.finish(asked)
    assert asked.knobs == Knobs()  # sizes stay as each worker has them


def test_nothing_changes_while_links_are_slow_or_after_the_change() -> None:
    job = FastJob()
    ids = [placement.id for placement in job.declared()]
    assert all(job.measured(0.99 * RATE, ids).moves == [] for _ in range(50))
    job.measured(RATE, ids)
    asked = job.measured(RATE, ids)
    job.finish(asked)
    moved = [move.new for move in asked.moves]
    assert job.measured(2 * RATE, moved) == asked, "rank 0 is asked for nothing more"


def test_tensors_that_come_later_travel_over_both() -> None:
    job = FastJob()
    ids = [placement.id for placement in job.declared()]
    job.measured(RATE, ids)
    job.finish(job.measured(RATE, ids))
    job.inbox.clear()
    job.declare(0, spec("late", (4_000_000,)), request=2)
    job.install_all()
    assert lanes_of([one for one in job.answers(0) if isinstance(one, Placement)]) == {0, 1}


def test_where_no_tensor_can_go_over_the_next_report_is_looked_at_again() -> None:
    job = FastJob()
    ids = [placement.id for placement in job.declared()]
    for _ in range(3):
        assert job.measured(RATE, []).moves == []
    assert [move.old for move in job.measured(RATE, ids).moves] == ids


def test_servers_know_before_rank_0_is_told() -> None:
    job = FastJob()
    ids = [placement.id for placement in job.declared()]
    job.measured(RATE, ids)
    job.send(0, Measured(1, [0.5] * 4, False, ids, RATE, 0.0))
    assert len(job.got(0, Retune)) == 1
    entries = [one for server in range(SERVERS) for one in job.got(SERVER_IDS + server, Install)]
    assert {lane for entry in entries for tensor in entry.tensors for _, lane, _ in tensor.parts} == {0, 1}


@pytest.mark.parametrize("lanes", [1, 3])
def test_a_number_that_was_set_stays(lanes: int) -> None:
    job = FastJob(msgspec.structs.replace(AUTOMATIC, lanes=lanes))
    assert (job.welcome.settings.lanes, job.welcome.settings.spare_lanes) == (lanes, 0)
    assert lanes_of(job.declared()) == set(range(lanes))


def test_ranks_must_say_the_same() -> None:
    job = FakeJob(2, 1)
    job.send(0, msgspec.structs.replace(join(0), settings=AUTOMATIC))
    job.send(1, msgspec.structs.replace(join(1), settings=msgspec.structs.replace(AUTOMATIC, lanes=2)))
    (refused,) = job.got(1, JoinRefused)
    assert "lanes=2" in refused.reason


def test_a_search_for_sizes_goes_on_beside_it(tmp_path: Path) -> None:
    """Its trials and the change of lanes come one after another, whichever is due."""
    tuning = TuningSettings(Knobs(), "random", 8, 4)
    job = FastJob(msgspec.structs.replace(AUTOMATIC, tuning=tuning), tmp_path)
    ids = [placement.id for placement in job.declared()]
    numbers, sizes, used = [], set(), {0}
    for _ in range(8):
        asked = job.measured(RATE, ids)
        if asked.moves:
            job.finish(asked)
            ids = [move.new for move in asked.moves]
        numbers.append(asked.number)
        sizes.add(asked.knobs.partition_bytes)
        used |= {lane for move in asked.moves for _, lane, _ in move.parts}
    assert numbers == list(range(1, 9))
    assert len(sizes) >= 3
    assert used == {0, 1}
