"""How a change of settings travels: cut anew, rounds named, everybody told, old partitions freed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from byteps import worker
from byteps.config import Config
from byteps.coordinator.core import Coordinator, Outbox
from byteps.errors import ProtocolError
from byteps.tuning import records
from byteps.tuning.tuner import Try
from byteps.wire import (
    Agreed,
    Finished,
    Install,
    JobSettings,
    JoinRefused,
    Knobs,
    Measured,
    Move,
    Placement,
    Proceed,
    Refuse,
    Retract,
    Retune,
    Taken,
    TuningSettings,
)

from .fake_job import SERVER_IDS, FakeJob, join, spec

WORKERS, SERVERS = 3, 2
TUNING = TuningSettings(Knobs(), "random", 8, 4)
SPECS = [spec("small", (300,)), spec("large", (400_000,))]


class TunedJob(FakeJob):
    """A job that tunes, with two tensors that all ranks use."""

    def __init__(self, folder: Path, tuning: TuningSettings = TUNING) -> None:
        super().__init__(WORKERS, SERVERS)
        self.core = Coordinator(WORKERS, SERVERS, lambda: self.now_s, later=self._later, tune_folder=folder)
        self.settings = JobSettings(1, 128 << 10, False, "parameter-server", tuning)

    def _later(self, work: Callable[[], Try], deliver: Callable[[Try], Outbox]) -> None:
        self.take(deliver(work()))

    def start(self) -> TunedJob:
        for server in range(SERVERS):
            self.send(SERVER_IDS + server, join(server, role="server"))
        for rank in range(WORKERS):
            self.send(rank, msgspec.structs.replace(join(rank), settings=self.settings))
        for rank in range(WORKERS):
            self.declare(rank, *SPECS)
            self.install_all()
        self.ids = [answer.id for answer in self.answers(0) if isinstance(answer, Placement)]
        self.inbox.clear()
        return self

    def measured(self, seconds: float = 0.5) -> Retune:
        """Rank 0 reports; returns what it is told to do next."""
        number = max((one.number for one in self.told), default=0)
        self.send(0, Measured(number, [seconds] * 4, False, self.ids, 1e8, 0.0))
        self.install_all()
        return self.told[-1]

    @property
    def told(self) -> list[Retune]:
        return self.got(0, Retune)

    def change(self, seconds: float = 0.5) -> list[Move]:
        """A change that all ranks make."""
        asked = self.measured(seconds)
        if not asked.moves:
            return []
        self.send(0, Agreed(asked.number, [7] * len(asked.moves)))
        for rank in range(1, WORKERS):
            self.send(rank, Taken(asked.number))
        moves = asked.moves
        for rank in range(WORKERS):
            self.send(rank, Finished([move.old for move in moves if move.old != move.new]))
        self.ids = [move.new for move in moves]
        return moves


@pytest.fixture
def job(tmp_path: Path) -> TunedJob:
    return TunedJob(tmp_path).start()


def test_rank_0_names_the_rounds_and_goes_on_when_all_know(job: TunedJob) -> None:
    asked = job.measured()
    assert [move.old for move in asked.moves] == job.ids
    assert all(sum(nbytes for _, _, nbytes in move.parts) > 0 for move in asked.moves)
    job.send(0, Agreed(asked.number, [8, 9]))
    (said,) = job.got(1, Retune)
    assert [move.round for move in said.moves] == [8, 9]
    assert [move.new for move in said.moves] == [move.new for move in asked.moves]
    job.send(1, Taken(asked.number))
    assert job.got(0, Proceed) == []
    job.send(2, Taken(asked.number))
    assert job.got(0, Proceed) == [Proceed(asked.number)]


def test_servers_know_the_new_partitions_before_anybody_is_told(job: TunedJob) -> None:
    job.send(0, Measured(0, [0.5] * 4, False, job.ids, 1e8, 0.0))
    assert job.told == []
    assert all(job.got(SERVER_IDS + server, Install) for server in range(SERVERS))
    job.install_all()
    assert len(job.told) == 1


def test_servers_forget_the_old_partitions_when_all_have_gone_over(job: TunedJob) -> None:
    old = set(job.ids)
    job.change()
    retired: set[int] = set()
    for _ in range(4):
        job.send(0, Measured(job.told[-1].number, [0.5] * 4, False, job.ids, 1e8, 0.0))
        for server in range(SERVERS):
            retired |= {tensor for message in job.install(server) for tensor in message.retire}
        moves = job.told[-1].moves
        if moves and moves[0].new not in job.ids:
            break
    assert retired == old


def test_partitions_have_the_size_that_is_tried(job: TunedJob) -> None:
    seen = set()
    for number in range(6):
        moves = job.change(0.5 + number / 1000)
        wanted = job.told[-1].knobs.partition_bytes
        for move in moves:
            if move.parts and wanted:
                sizes = [nbytes for _, _, nbytes in move.parts]
                assert max(sizes) == min(wanted, sum(sizes))
                seen.add(wanted)
    assert len(seen) >= 3


def test_a_tensor_that_some_rank_lacks_stays_as_it_is(job: TunedJob) -> None:
    job.declare(0, spec("late", (1000,)), request=2)
    job.install_all()
    (late,) = [answer.id for answer in job.answers(0) if isinstance(answer, Placement)]
    job.ids.append(late)
    assert late not in [move.old for move in job.measured().moves]


def test_a_refused_tensor_is_withdrawn_under_both_numbers(job: TunedJob) -> None:
    asked = job.measured()
    job.send(0, Agreed(asked.number, [8, 8]))
    job.send(2, Refuse("large", 0, "it has another shape here"))
    both = {asked.moves[1].old, asked.moves[1].new}
    assert {message.id for message in job.got(1, Retract)} == both
    assert {message.id for message in job.got(0, Retract)} == both


def test_who_leaves_is_not_waited_for(job: TunedJob) -> None:
    asked = job.measured()
    job.send(0, Agreed(asked.number, [8, 8]))
    job.send(1, Taken(asked.number))
    job.leave(2)
    assert job.got(0, Proceed) == [Proceed(asked.number)]


def test_what_nobody_asked_for_is_refused(job: TunedJob) -> None:
    for rank, message in (
        (0, Agreed(1, [8, 8])),
        (1, Taken(1)),
        (1, Measured(0, [1.0], False, [], 0.0, 0.0)),
    ):
        with pytest.raises(ProtocolError):
            job.send(rank, message)
    asked = job.measured()
    with pytest.raises(ProtocolError, match="1 rounds for 2 tensors"):
        job.send(0, Agreed(asked.number, [8]))
    with pytest.raises(ProtocolError):
        job.send(1, Agreed(asked.number, [8, 8]))


def test_sizes_that_no_tensor_can_go_over_to_are_not_scored(job: TunedJob, tmp_path: Path) -> None:
    both = job.ids
    job.ids = []  # a job that only broadcasts
    for number in range(4):
        asked = job.measured(0.5 - number / 10)
        assert (asked.number, asked.knobs, asked.moves) == (number + 1, TUNING.start, [])
    (path,) = tmp_path.iterdir()
    assert [trial.kind for trial in records.load(path).trials] == ["start"]
    job.ids = both
    asked = job.measured()
    assert asked.knobs != TUNING.start
    assert len(asked.moves) == len(both)


def test_partitions_of_the_default_size_can_be_where_a_search_begins() -> None:
    told = [worker.settings_of(Config(tune=True, size=2, partition_bytes=size)) for size in (0, 128 << 10)]
    assert [each.partition_bytes for each in told] == [128 << 10] * 2
    assert [each.tuning.start.partition_bytes for each in told if each.tuning] == [0, 128 << 10]


def test_a_report_on_an_older_change_is_passed_over(job: TunedJob) -> None:
    job.change()
    before = len(job.told)
    job.send(0, Measured(0, [0.5] * 4, False, job.ids, 1e8, 0.0))
    assert len(job.told) == before


def test_a_job_that_does_not_tune_takes_no_reports() -> None:
    job = FakeJob(2, 1).start()
    with pytest.raises(ProtocolError):
        job.send(0, Measured(0, [0.5], False, [], 0.0, 0.0))


def test_without_optuna_a_worker_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    job = TunedJob(tmp_path, msgspec.structs.replace(TUNING, search="bayes"))
    job.send(0, msgspec.structs.replace(join(0), settings=job.settings))
    (refused,) = job.got(0, JoinRefused)
    assert "pip install 'byteps[tune]'" in refused.reason


def test_ranks_that_disagree_about_tuning_are_named(tmp_path: Path) -> None:
    job = TunedJob(tmp_path)
    job.send(0, msgspec.structs.replace(join(0), settings=job.settings))
    other = msgspec.structs.replace(job.settings, tuning=None)
    job.send(1, msgspec.structs.replace(join(1), settings=other))
    (refused,) = job.got(1, JoinRefused)
    assert "tuning=off" in refused.reason
    assert "worker rank 0" in refused.reason


def test_a_later_job_begins_with_what_was_found(tmp_path: Path) -> None:
    first = TunedJob(tmp_path).start()
    while first.told[-1:] == [] or first.told[-1].steps == TUNING.window:
        first.change(0.5 if not first.told else 0.4 + len(first.told) / 1000)
    best = first.told[-1].knobs
    (path,) = tmp_path.iterdir()
    kept = path.read_bytes()
    second = TunedJob(tmp_path).start()
    second.change(0.5)
    assert second.told[-1].knobs == best
    second.change(0.4)
    assert second.told[-1].knobs == best
    assert second.told[-1].steps > TUNING.window  # only watched from now on
    assert path.read_bytes() == kept


def test_what_was_found_is_given_up_where_it_is_no_better(tmp_path: Path) -> None:
    test_a_later_job_begins_with_what_was_found(tmp_path)
    job = TunedJob(tmp_path).start()
    job.change(0.5)
    known = job.told[-1].knobs
    job.change(0.6)
    assert job.told[-1].knobs != known
    assert job.told[-1].steps == TUNING.window
