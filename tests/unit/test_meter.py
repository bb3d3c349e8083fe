"""How long steps take, told from the rounds of one tensor."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from byteps.communicator.meter import FIRST_ROUND, WARM_STEPS, Meter, Report
from byteps.wire import Knobs, Move, Retune

SMALL, LARGE = 3, 4


def steps(meter: Meter, times: list[float], large: int = LARGE) -> Iterator[Report]:
    """Rounds of two tensors in each step; what the meter reports."""
    now_s = 100.0
    for seconds in times:
        for tensor, nbytes in ((SMALL, 10), (large, 1000)):
            report = meter.begin(tensor, nbytes, now_s)
            if report is not None:
                yield report
        now_s += seconds


def change(number: int, limit_s: float = 1e9, moves: list[Move] | None = None) -> Retune:
    return Retune(number, Knobs(), moves or [], limit_s, 3)


def test_the_first_steps_do_not_count() -> None:
    first = [9.0] * (FIRST_ROUND - 1)
    (report,) = steps(Meter(4), [*first, *[5.0] * WARM_STEPS, 1.0, 2.0, 3.0, 4.0, 8.0, 8.0])
    assert (report.number, list(report.seconds), report.cut) == (0, [1.0, 2.0, 3.0, 4.0], False)


def test_steps_after_a_change_are_counted_from_its_round() -> None:
    meter = Meter(2)
    assert list(steps(meter, [1.0] * 20))
    meter.expect(change(1, moves=[Move(SMALL, 13), Move(LARGE, 14)]))
    assert list(steps(meter, [1.0] * 20)) == []
    meter.moved(SMALL, 13)
    assert list(steps(meter, [1.0] * 20)) == []
    meter.moved(LARGE, 14)
    (report,) = steps(meter, [7.0, 7.0, 1.0, 2.0, 3.0, 9.0], large=14)
    assert (report.number, list(report.seconds)) == (1, [1.0, 2.0, 3.0])


def test_without_moves_counting_begins_at_once() -> None:
    meter = Meter(2)
    assert list(steps(meter, [1.0] * 20))
    meter.expect(change(2))
    assert len(list(steps(meter, [1.0] * 20))) == 1


def test_a_tensor_that_stays_as_it_is_is_measured_from_the_change_of_others() -> None:
    meter = Meter(2)
    assert list(steps(meter, [1.0] * 20))
    meter.expect(change(2, moves=[Move(SMALL, 13), Move(5, 5)]))
    assert list(steps(meter, [1.0] * 20)) == []
    meter.moved(SMALL, 13)
    (report,) = steps(meter, [7.0, 7.0, 1.0, 2.0, 3.0, 9.0])
    assert (report.number, list(report.seconds)) == (2, [1.0, 2.0, 3.0])
    meter.moved(5, 5)
    assert list(steps(meter, [1.0] * 20)) == []


@pytest.mark.parametrize(
    ("times", "cut"), [([1, 2, 2, 2], True), ([2, 1, 2, 1, 2], False), ([2, 2, 1, 1, 1], False)]
)
def test_two_long_steps_in_a_row_end_a_measurement(times: list[float], cut: bool) -> None:
    """The first step after a change is no reason yet."""
    meter = Meter(2)
    assert list(steps(meter, [1.0] * 20))
    meter.expect(change(1, limit_s=1.5))
    (report,) = steps(meter, [*times, 1.0])
    assert report.cut is cut
    assert len(report.seconds) == (2 if cut else 3)
