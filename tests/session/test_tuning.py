"""Settings that change while rounds go on: results stay what they are, on all ranks, whatever is tried."""

from __future__ import annotations

import itertools
import random
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from byteps.communicator.parameter_server import ParameterServer
from byteps.control import ControlClient
from byteps.dtypes import ReduceOp
from byteps.errors import BytePSError, ConfigError, DeclarationError
from byteps.session import Session
from byteps.testing import run_ranks
from byteps.tuning import records
from byteps.wire import Message, Taken

from . import arrays
from .arrays import Array, Job, buffer, spec, start

LENGTHS = (5, 70_000, 16_384, 300_000, 1)
NAMES = [f"layer{number}" for number in range(len(LENGTHS))]
MOST_S = 40.0


class Steps:
    """How many steps to take: all ranks as many, until the tuner has tried enough.

    Args:
        size: Number of ranks.
        folder: Where the tuner writes; None: take ``least`` steps.
        trials: How many are enough.
        least: Steps to take in any case.
    """

    def __init__(self, size: int, folder: Path | None, trials: int = 6, least: int = 20) -> None:
        self._folder, self._trials, self._least = folder, trials, least
        self._meeting = threading.Barrier(size, self._look)
        self._give_up_s = time.monotonic() + MOST_S
        self.taken = 0

    def more(self) -> bool:
        """Whether another step is to be taken. Every rank asks before each."""
        self._meeting.wait(30)
        return self._goes_on

    def _look(self) -> None:
        self._goes_on = self.taken < self._least or (
            self._folder is not None
            and time.monotonic() < self._give_up_s
            and not self._is_enough(self._folder)
        )
        self.taken += self._goes_on

    def _is_enough(self, folder: Path) -> bool:
        return any(len(records.load(path).trials) >= self._trials for path in folder.glob("*.json"))


def contribution(rank: int, step: int, number: int) -> Array:
    generator = np.random.default_rng([rank, step, number])
    return generator.standard_normal(LENGTHS[number]).astype(np.float32)


def train(session: Session, steps: Steps, sums: Callable[[int, list[Array]], None]) -> None:
    """Steps in which each rank submits in an order of its own, and waits in another."""
    chance = random.Random(session.rank)
    for step in itertools.takewhile(lambda step: steps.more(), itertools.count()):
        order = chance.sample(range(len(LENGTHS)), len(LENGTHS))
        data = [contribution(session.rank, step, number) for number in range(len(LENGTHS))]
        handles = {
            number: start(
                session,
                spec(NAMES[number], LENGTHS[number], op=ReduceOp.AVERAGE),
                data[number],
                data[number],
                -number,
            )
            for number in order
        }
        for number in reversed(order):
            handles[number].wait()
        sums(step, data)


def checksums(session: Session, steps: Steps) -> list[int]:
    """Of the results of every step."""
    found: list[int] = []
    train(
        session, steps, lambda step, data: found.append(zlib.crc32(b"".join(each.tobytes() for each in data)))
    )
    return found


def settings(folder: Path, **more: object) -> dict[str, object]:
    chosen = {"tune_search": "random", "tune_window": 2, "tune_trials": 10, "tune_results": str(folder)}
    return {"tune": True, **chosen, **more}


def only(folder: Path) -> records.Found:
    (path,) = folder.iterdir()
    return records.load(path)


def test_values_are_bitwise_those_of_an_untuned_run(tmp_path: Path) -> None:
    steps = Steps(3, tmp_path)
    with arrays.job(3, 2, deterministic=True, **settings(tmp_path)) as sessions:
        tuned = run_ranks(sessions, lambda session: checksums(session, steps))
    same = Steps(3, None, least=steps.taken)
    with arrays.job(3, 2, deterministic=True) as sessions:
        untuned = run_ranks(sessions, lambda session: checksums(session, same))
    assert tuned == untuned
    assert tuned[0] == tuned[1] == tuned[2]
    found = only(tmp_path)
    assert len({line.knobs["partition_bytes"] for line in found.trials}) >= 3


def test_partitions_of_live_tensors_change(tmp_path: Path) -> None:
    cuts: set[int] = set()
    steps = Steps(2, tmp_path)
    with arrays.job(2, 2, **settings(tmp_path)) as sessions:
        communicator = sessions[0].communicator
        assert isinstance(communicator, ParameterServer)

        def look(step: int, data: list[Array]) -> None:
            cuts.add(len(communicator.servers_of(NAMES[3])))

        def train_and_look(session: Session) -> None:
            train(session, steps, look if session.rank == 0 else lambda step, data: None)

        run_ranks(sessions, train_and_look)
    assert len(cuts) >= 3


def test_sums_are_right_whatever_is_tried(job: Job, tmp_path: Path) -> None:
    """Whole numbers, whose sums do not depend on where they are cut."""
    steps = Steps(3, tmp_path)

    def check(session: Session) -> None:
        for step in itertools.takewhile(lambda step: steps.more(), itertools.count()):
            data = [np.full(length, session.rank + step, np.float32) for length in LENGTHS]
            handles = [
                start(session, spec(name, length), each, each)
                for name, length, each in zip(NAMES, LENGTHS, data, strict=True)
            ]
            for handle, each in zip(handles, data, strict=True):
                handle.wait()
                assert np.all(each == 3 + 3 * step)

    with job(3, 2, **settings(tmp_path)) as sessions:
        run_ranks(sessions, check)
    assert len(only(tmp_path).trials) >= 6


def test_a_broadcast_may_be_the_largest_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays as it is, and tells how long steps take: more of them than a message of rank 1 needs."""
    notify = ControlClient.notify

    def deliver(control: ControlClient, message: Message) -> None:
        with suppress(BytePSError):  # the job may be over
            notify(control, message)

    def late(control: ControlClient, message: Message) -> None:
        if isinstance(message, Taken):
            threading.Timer(0.2, deliver, (control, message)).start()
        else:
            notify(control, message)

    monkeypatch.setattr(ControlClient, "notify", late)
    steps = Steps(2, tmp_path, trials=5)

    def train(session: Session) -> None:
        what = spec("state", LENGTHS[3], op=ReduceOp.COPY, root=0)
        while steps.more():
            data = np.full(LENGTHS[1], session.rank, np.float32)
            handle = start(session, spec("gradient", LENGTHS[1]), data, data)
            for _ in range(6):
                state = np.full(LENGTHS[3], session.rank, np.float32)
                start(session, what, state if session.rank == 0 else None, state).wait()
                assert np.all(state == 0)
            handle.wait()
            assert np.all(data == 1)

    with arrays.job(2, 2, **settings(tmp_path)) as sessions:
        run_ranks(sessions, train)
    assert len(only(tmp_path).trials) >= 5


def dispute(session: Session, last: int) -> str:
    """Use a tensor with one shape, then on one rank with another; returns the error."""

    def use() -> None:
        for number in range(last + 2):
            shape = 70_000 if session.rank == 0 or number < last else 7
            data = np.ones(shape, np.float32)
            start(session, spec("disputed", shape), data, data).wait()

    with pytest.raises(DeclarationError) as caught:
        use()
    return str(caught.value)


@pytest.mark.parametrize("last", [6, 8, 9, 10, 14, 20])
def test_a_tensor_that_ranks_disagree_about_fails_on_all(last: int, tmp_path: Path) -> None:
    """Also while it is on the way from one number to another."""
    with arrays.job(2, 1, **settings(tmp_path)) as sessions:
        errors = run_ranks(sessions, lambda session: dispute(session, last))
    assert all("'disputed'" in each and "rank 1" in each for each in errors)


def test_a_rank_that_leaves_ends_no_other(job: Job, tmp_path: Path) -> None:
    steps = Steps(3, None, least=20)
    with job(3, 1, **settings(tmp_path)) as sessions:

        def leave_at_any_time(session: Session) -> None:
            checksums(session, steps)
            session.shutdown()

        run_ranks(sessions, leave_at_any_time)


def test_one_worker_has_nothing_to_tune() -> None:
    from byteps.config import Config
    from byteps.joining import connect

    with pytest.raises(ConfigError, match="one worker"):
        connect(Config(tune=True, size=1))


def test_deterministic_all_reduce_cannot_be_tuned() -> None:
    from byteps.config import Config
    from byteps.worker import refuse_tuning

    config = Config(tune=True, size=2, deterministic=True, communicator="allreduce")
    with pytest.raises(ConfigError, match="rounded"):
        refuse_tuning(config, 2)


def test_buffers_are_whole(tmp_path: Path) -> None:
    """Other partitions do not touch what lies beside a tensor."""
    steps = Steps(2, tmp_path)
    with arrays.job(2, 2, **settings(tmp_path)) as sessions:

        def check(session: Session) -> None:
            padded = np.full(100_002, 7.0, np.float32)
            inner = padded[1:-1]
            while steps.more():
                inner[:] = 1.0
                session.submit(spec("inner", 100_000), buffer(inner), buffer(inner)).wait()
                assert np.all(inner == 2.0)
                assert padded[0] == padded[-1] == 7.0

        run_ranks(sessions, check)


def test_the_model_is_asked_after_the_closed_form(tmp_path: Path) -> None:
    steps = Steps(2, tmp_path, trials=7)
    with arrays.job(2, 1, **settings(tmp_path, tune_search="bayes")) as sessions:
        run_ranks(sessions, lambda session: checksums(session, steps))
    kinds = [line.kind for line in only(tmp_path).trials]
    assert kinds[:6] == ["start", "closed form", "search", "search", "search", "search"]


def test_what_cannot_be_written_ends_tuning_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("not a folder")
    steps = Steps(2, None, least=60)
    same = Steps(2, None, least=60)
    with arrays.job(2, 2, deterministic=True, **settings(tmp_path / "file")) as sessions:
        tuned = run_ranks(sessions, lambda session: checksums(session, steps))
    with arrays.job(2, 2, deterministic=True) as sessions:
        untuned = run_ranks(sessions, lambda session: checksums(session, same))
    assert tuned == untuned
    assert "training goes on" in caplog.text


def test_a_sampler_that_fails_ends_tuning_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(sampler: object) -> None:
        raise RuntimeError("no idea")

    monkeypatch.setattr("byteps.tuning.samplers.RandomSampler.ask", refuse)
    steps = Steps(2, None, least=80)
    with arrays.job(2, 2, **settings(tmp_path)) as sessions:
        results = run_ranks(sessions, lambda session: checksums(session, steps))
    assert results[0] == results[1]
    assert "no idea" in caplog.text
    assert [line.kind for line in only(tmp_path).trials] == ["start"]


def test_frames_and_partitions_have_the_sizes_that_are_set(tmp_path: Path) -> None:
    """A partition of 4 MiB, where placement by itself would cut it into 200."""
    length = 1 << 20
    whole = settings(tmp_path, partition_bytes=4 << 20, tune_window=1000)
    with arrays.job(2, 1, **whole) as sessions:
        communicators = [session.communicator for session in sessions]
        sent: list[int] = []
        for chunk_bytes in (64 << 10, 512 << 10):
            for communicator in communicators:
                assert isinstance(communicator, ParameterServer)
                communicator.worker.set_chunk(chunk_bytes)
            first = communicators[0]
            assert isinstance(first, ParameterServer)
            before = first.worker.frames_sent
            run_ranks(sessions, lambda session: one_round(session, length))
            sent.append(first.worker.frames_sent - before)
            assert len(first.servers_of("whole")) == 1
    assert 64 <= sent[0] <= 70
    assert 8 <= sent[1] <= 14


def one_round(session: Session, length: int) -> None:
    data = np.ones(length, np.float32)
    start(session, spec("whole", length), data, data).wait()
    assert np.all(data == 2)
