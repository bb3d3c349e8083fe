"""``byteps.scheduler`` as a user of its own transfers sees it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from byteps.errors import SchedulerClosed
from byteps.scheduler import Part, Scheduler, Task


class Recorder:
    """Transfers that go on until the test ends them."""

    def __init__(self) -> None:
        self.started: list[Part] = []

    def __call__(self, part: Part) -> None:
        self.started.append(part)

    @property
    def names(self) -> list[str]:
        return [f"{part.task.name}{part.index}" for part in self.started]

    def finish(self) -> None:
        """End the transfer that has gone on for longest."""
        self.started.pop(0).finish()


def scheduler_of(credit_bytes: int = 100, partition_bytes: int = 50, policy: str = "priority") -> Scheduler:
    return Scheduler(credit_bytes=credit_bytes, partition_bytes=partition_bytes, policy=policy)


def ready(
    scheduler: Scheduler, name: str, nbytes: int, start: Callable[[Part], None], priority: int = 0
) -> Task:
    task = scheduler.submit(name, nbytes, start, priority=priority)
    task.ready()
    return task


def test_parts_are_views_that_cover_the_task() -> None:
    memory, copy = bytes(range(130)), bytearray(130)

    def start(part: Part) -> None:
        copy[part.slice()] = memory[part.slice()]
        part.finish()

    task = ready(scheduler_of(), "t", len(memory), start)
    task.future.result(0)
    assert bytes(copy) == memory


def test_slices_count_elements() -> None:
    transfers = Recorder()
    ready(scheduler_of(partition_bytes=40), "t", 64, transfers)
    assert [part.slice(8) for part in transfers.started] == [slice(0, 5), slice(5, 8)]
    with pytest.raises(ValueError, match=r"part 0 of 't'.* cuts through elements of 16 bytes"):
        transfers.started[0].slice(16)


def test_a_task_takes_part_once_it_is_ready() -> None:
    scheduler, transfers = scheduler_of(), Recorder()
    task = scheduler.submit("t", 50, transfers)
    assert not transfers.started
    task.ready()
    assert transfers.names == ["t0"]
    assert not task.future.done()
    transfers.finish()
    assert task.future.done()
    with pytest.raises(RuntimeError, match="'t' was ready before"):
        task.ready()


def test_what_is_urgent_overtakes_what_has_not_started() -> None:
    scheduler, transfers = scheduler_of(), Recorder()
    ready(scheduler, "late", 150, transfers, priority=-1)
    ready(scheduler, "soon", 100, transfers, priority=5)
    assert transfers.names == ["late0", "late1"]
    transfers.finish()
    transfers.finish()
    assert transfers.names == ["soon0", "soon1"]
    transfers.finish()
    assert transfers.names == ["soon1", "late2"]


def test_an_urgent_part_that_lacks_credit_is_not_overtaken() -> None:
    scheduler, transfers = scheduler_of(credit_bytes=60), Recorder()
    ready(scheduler, "a", 40, transfers)
    ready(scheduler, "urgent", 50, transfers, priority=2)
    ready(scheduler, "small", 10, transfers, priority=1)
    assert transfers.names == ["a0"]
    transfers.finish()
    assert transfers.names == ["urgent0", "small0"]


def test_first_come_first_served() -> None:
    scheduler, transfers = scheduler_of(policy="fifo"), Recorder()
    ready(scheduler, "a", 150, transfers)
    ready(scheduler, "b", 50, transfers, priority=9)
    transfers.finish()
    transfers.finish()
    assert transfers.names == ["a2", "b0"]


def test_stop_and_wait_has_one_part_in_flight() -> None:
    scheduler, transfers = scheduler_of(policy="stop-and-wait"), Recorder()
    ready(scheduler, "a", 100, transfers)
    ready(scheduler, "b", 50, transfers, priority=9)
    assert transfers.names == ["a0"]
    transfers.finish()
    assert transfers.names == ["b0"]


def test_a_part_larger_than_the_credit_goes_alone() -> None:
    scheduler, transfers = scheduler_of(credit_bytes=10), Recorder()
    ready(scheduler, "a", 100, transfers)
    assert transfers.names == ["a0"]
    assert scheduler.in_flight_bytes == 50
    transfers.finish()
    assert transfers.names == ["a1"]


def test_an_empty_task_has_one_empty_part() -> None:
    scheduler, transfers = scheduler_of(), Recorder()
    task = ready(scheduler, "t", 0, transfers)
    assert [(part.offset, part.nbytes) for part in transfers.started] == [(0, 0)]
    transfers.finish()
    task.future.result(0)


def test_parts_that_finish_while_they_start_do_not_nest() -> None:
    depth, deepest, started = 0, 0, 0

    def start(part: Part) -> None:
        nonlocal depth, deepest, started
        depth += 1
        deepest = max(deepest, depth)
        started += 1
        part.finish()
        depth -= 1

    task = ready(scheduler_of(credit_bytes=1, partition_bytes=1), "t", 5000, start)
    task.future.result(0)
    assert (started, deepest) == (5000, 1)


def test_parked_parts_hold_no_credit_but_are_not_finished() -> None:
    scheduler, transfers = scheduler_of(credit_bytes=50), Recorder()
    task = ready(scheduler, "a", 100, transfers)
    transfers.started[0].park()
    assert transfers.names == ["a0", "a1"]
    assert scheduler.in_flight_bytes == 50
    transfers.started[1].park()
    assert not task.future.done()
    transfers.finish()
    transfers.finish()
    task.future.result(0)


def test_more_credit_starts_more() -> None:
    scheduler, transfers = scheduler_of(credit_bytes=50), Recorder()
    ready(scheduler, "a", 200, transfers)
    scheduler.set_credit(150)
    assert transfers.names == ["a0", "a1", "a2"]


def test_an_error_of_start_ends_its_task_and_no_other() -> None:
    scheduler, transfers = scheduler_of(), Recorder()
    started: list[int] = []

    def start(part: Part) -> None:
        started.append(part.index)
        raise OSError("no route")

    broken = ready(scheduler, "broken", 500, start, priority=1)
    with pytest.raises(OSError, match="no route"):
        broken.future.result(0)
    assert started == [0], "the other parts are not started any more"
    assert scheduler.in_flight_bytes == 0
    ready(scheduler, "other", 50, transfers)
    assert transfers.names == ["other0"]


def test_a_failed_task_ends_when_nothing_of_it_is_in_flight() -> None:
    scheduler, transfers = scheduler_of(), Recorder()
    task = ready(scheduler, "t", 200, transfers)
    first, second = transfers.started
    second.finish(OSError("reset"))
    assert not task.future.done(), "the first part's memory is still in use"
    first.finish(OSError("later"))
    with pytest.raises(OSError, match="reset"):
        task.future.result(0)
    assert len(transfers.started) == 2


def test_an_error_after_the_part_was_finished_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def start(part: Part) -> None:
        part.finish()
        raise OSError("too late")

    ready(scheduler_of(), "t", 10, start).future.result(0)
    assert "part 0 of 't'" in caplog.text
    assert "too late" in caplog.text


def test_an_interrupted_start_reaches_the_caller_and_blocks_nobody() -> None:
    scheduler, transfers = scheduler_of(), Recorder()

    def start(part: Part) -> None:
        raise KeyboardInterrupt

    task = scheduler.submit("t", 10, start)
    with pytest.raises(KeyboardInterrupt):
        task.ready()
    assert isinstance(task.future.exception(0), KeyboardInterrupt)
    ready(scheduler, "next", 50, transfers)
    assert transfers.names == ["next0"]


def test_a_part_is_finished_once() -> None:
    scheduler, transfers = scheduler_of(), Recorder()
    ready(scheduler, "a", 50, transfers)
    part = transfers.started[0]
    part.finish()
    with pytest.raises(RuntimeError, match=r"part 0 of 'a'.* was finished before"):
        part.finish()


def test_a_closed_scheduler_refuses_and_lets_transfers_end() -> None:
    scheduler, transfers = scheduler_of(), Recorder()
    whole = ready(scheduler, "whole", 50, transfers, priority=1)
    half = ready(scheduler, "half", 100, transfers)
    never = scheduler.submit("never", 50, transfers)
    scheduler.close()
    scheduler.close()
    with pytest.raises(SchedulerClosed, match="'never': the scheduler was closed"):
        never.future.result(0)
    with pytest.raises(SchedulerClosed, match="'never': the scheduler was closed"):
        never.ready()
    with pytest.raises(SchedulerClosed, match="'new': the scheduler was closed"):
        scheduler.submit("new", 50, transfers)
    assert transfers.names == ["whole0", "half0"]
    assert not half.future.done()
    transfers.finish()
    transfers.finish()
    whole.future.result(0)
    with pytest.raises(SchedulerClosed, match="'half'"):
        half.future.result(0)
    assert not transfers.started


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Scheduler(credit_bytes=0, partition_bytes=1), "credit_bytes=0"),
        (lambda: Scheduler(credit_bytes=1, partition_bytes=-4), "partition_bytes=-4"),
        (
            lambda: scheduler_of(policy="lifo"),
            "policy='lifo': the policies are priority, fifo, stop-and-wait",
        ),
        (lambda: scheduler_of().set_credit(0), "credit_bytes=0"),
        (lambda: scheduler_of().submit("t", -1, Recorder()), "task 't': nbytes=-1"),
        (lambda: scheduler_of().submit("t", 1, Recorder(), priority=2**31), "task 't': priority=2147483648"),
    ],
)
def test_what_cannot_work_is_refused(call: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()


def test_starts_keep_the_schedule_while_other_threads_finish() -> None:
    """Collectives need one order on all ranks: no start may overtake another on its way to the engine."""
    order: list[tuple[int, int]] = []
    running = threading.Lock()
    with ThreadPoolExecutor(4) as pool:
        scheduler = scheduler_of(credit_bytes=8, partition_bytes=1, policy="fifo")

        def start(part: Part) -> None:
            assert running.acquire(blocking=False), "two starts at once"
            order.append((int(part.task.name), part.index))
            running.release()
            pool.submit(part.finish)

        tasks = [ready(scheduler, str(number), 300, start) for number in range(5)]
        for task in tasks:
            task.future.result(30)
    assert order == sorted(order)
    assert len(order) == 1500
