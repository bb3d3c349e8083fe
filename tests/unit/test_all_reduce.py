"""All-reduce's decisions, without any engine: what is next, what shares a collective, how large it is."""

from __future__ import annotations

import math

import pytest

from byteps.communicator.all_reduce_forms import form_of
from byteps.communicator.all_reduce_leader import Leader, Piece
from byteps.communicator.all_reduce_rounds import Round
from byteps.communicator.all_reduce_sizes import DEPTH, LEAST_BYTES, LEAST_COST_S, MOST_BYTES, Sizes
from byteps.dtypes import DType, ReduceOp
from byteps.wire import TensorSpec

KIB = 1 << 10
RANKS = 3


def leader(concurrency: int = 1, size: int = 64 * KIB, credit: int = 1 << 20, fuses: bool = True) -> Leader:
    return Leader(RANKS, concurrency, Sizes(size, credit), "priority", fuses)


def round_of(tensor: int, nbytes: int, priority: int = 0, op: ReduceOp = ReduceOp.SUM) -> Round:
    spec = TensorSpec(f"t{tensor}", DType.FLOAT32, (nbytes // 4,), op)
    return Round(tensor, spec, form_of(spec, RANKS, list(DType)), 1, (None, None), priority)


def drained(one: Leader) -> list[list[Piece]]:
    """All collectives, one after the other."""
    found = []
    while (batch := one.next()) is not None:
        found.append(batch[1])
        one.finished(batch[0], 0.0)
    return found


def test_a_tensor_takes_part_when_the_last_rank_has_announced_it() -> None:
    one = leader()
    assert not one.announced(2, 7)
    assert not one.announced(0, 7)
    assert one.missing(7) == [1]
    assert one.announced(1, 7)
    assert one.missing(7) == []
    assert not one.announced(1, 7), "that is the next round"


def test_large_tensors_are_cut_and_the_most_urgent_goes_first() -> None:
    one = leader(credit=64 * KIB)
    one.schedule(round_of(1, 160 * KIB))
    one.schedule(round_of(2, 64 * KIB, priority=1))
    first = (1, 0, 64 * KIB)
    assert drained(one) == [
        [first],
        [(2, 0, 64 * KIB)],
        [(1, 64 * KIB, 64 * KIB)],
        [(1, 128 * KIB, 32 * KIB)],
    ]


def test_what_waits_while_a_collective_is_in_flight_is_fused() -> None:
    one = leader()
    one.schedule(round_of(1, 4 * KIB))
    begun = one.next()
    assert begun is not None
    for tensor in range(2, 6):
        one.schedule(round_of(tensor, 4 * KIB))
    assert one.next() is None
    one.finished(begun[0], 0.0)
    assert drained(one) == [[(tensor, 0, 4 * KIB) for tensor in range(2, 6)]]


def test_neighbouring_parts_become_one_and_none_is_larger_than_intended() -> None:
    one = leader(size=64 * KIB)
    one.schedule(round_of(1, 4 * KIB))
    one.schedule(round_of(2, 144 * KIB))
    sizes = [[nbytes for _, _, nbytes in batch] for batch in drained(one)]
    assert sizes == [[4 * KIB, 64 * KIB], [64 * KIB + 16 * KIB]]


@pytest.mark.parametrize("fuses", [True, False])
def test_other_operations_and_deterministic_sums_share_nothing(fuses: bool) -> None:
    one = leader(fuses=fuses)
    for tensor, op in enumerate([ReduceOp.SUM, ReduceOp.AVERAGE, ReduceOp.MAX]):
        one.schedule(round_of(tensor, 4 * KIB, op=op))
    tensors = [[tensor for tensor, _, _ in batch] for batch in drained(one)]
    assert tensors == ([[0, 1], [2]] if fuses else [[0], [1], [2]])


def test_a_collective_grows_while_others_are_in_flight() -> None:
    one = leader(concurrency=8, size=64 * KIB, credit=4 * 64 * KIB)
    for tensor in range(32):
        one.schedule(round_of(tensor, 16 * KIB))
    begun = []
    while (batch := one.next()) is not None:
        begun.append(batch)
    assert [len(pieces) for _, pieces in begun] == [5, 5, 5], "a fourth would be a single tensor"
    one.finished(begun[0][0], 0.0)
    again = one.next()
    assert again is not None, "the next is as large as the one that is over"
    assert len(again[1]) == 5


def test_a_small_collective_is_followed_by_a_larger_one() -> None:
    one = leader(concurrency=8, size=64 * KIB, credit=3 * 64 * KIB)
    for tensor in range(3):
        one.schedule(round_of(tensor, 60 * KIB))
        assert one.next() is not None
    first, *_, small = range(4)
    one.schedule(round_of(3, 12 * KIB))
    assert one.next() is not None
    for tensor in range(4, 32):
        one.schedule(round_of(tensor, 12 * KIB))
    one.finished(small, 0.0)
    assert one.next() is None, "credit for one tensor of 12 KiB"
    one.finished(first, 0.0)
    again = one.next()
    assert again is not None
    assert len(again[1]) == 6


def test_what_comes_last_does_not_wait_to_grow() -> None:
    one = leader(concurrency=8, size=64 * KIB, credit=4 * 64 * KIB)
    one.schedule(round_of(0, 60 * KIB))
    assert one.next() is not None
    one.schedule(round_of(1, 4 * KIB))
    assert one.next() is not None


@pytest.mark.parametrize(("latency_s", "cost_s"), [(2e-3, 2e-3), (1e-4, LEAST_COST_S)])
def test_sizes_follow_the_closed_form(latency_s: float, cost_s: float) -> None:
    sizes = Sizes()
    sizes.step_bytes, sizes.latency_s = 4_300_000, latency_s
    rate = 35e6
    for step in range(20):
        sizes.moved(round(rate * 0.03), 0.03 * step, more=True)
    assert sizes.rate == pytest.approx(rate, rel=0.01)
    assert sizes.collective_bytes == pytest.approx(math.sqrt(4.3e6 * 35e6 * cost_s / (DEPTH + 2)), rel=0.02)
    assert sizes.credit_bytes == DEPTH * sizes.collective_bytes - sizes.collective_bytes // 4


def test_collectives_that_end_all_at_once_do_not_look_like_a_fast_link() -> None:
    sizes = Sizes()
    sizes.step_bytes, rate, burst, nbytes = 100_000_000, 35e6, 4, 256 * KIB
    for number in range(200):
        sizes.moved(nbytes, (number // burst + 1) * burst * nbytes / rate, more=True)
    assert sizes.rate == pytest.approx(rate, rel=0.25)


def test_the_credit_covers_the_latency_and_sizes_stay_within_limits() -> None:
    sizes = Sizes()
    sizes.latency_s, sizes.rate = 0.1, 1e6
    assert sizes.collective_bytes == LEAST_BYTES
    sizes.rate, sizes.step_bytes = 1e8, 10**12
    assert sizes.collective_bytes == pytest.approx(0.008 * 1e8, rel=0.01), "more would hold up what is urgent"
    sizes.rate = 1e10
    assert sizes.collective_bytes == MOST_BYTES
    assert sizes.credit_bytes == pytest.approx(1.5 * 1e10 * 0.1 + MOST_BYTES)


def test_an_idle_link_is_not_taken_for_a_slow_one() -> None:
    sizes = Sizes()
    sizes.moved(1 << 20, 0.0, more=True)
    assert sizes.moved(8 << 20, 0.2, more=True)
    measured = sizes.rate
    assert measured == pytest.approx((8 << 20) / 0.2)
    assert not sizes.moved(1 << 20, 5.0, more=False)
    assert not sizes.moved(1 << 20, 9.0, more=True)
    assert sizes.rate == measured


def test_short_bursts_are_measured_together() -> None:
    sizes = Sizes()
    rate, nbytes, now_s = 20e6, 128 * KIB, 0.0
    for _ in range(40):
        now_s += 1.0  # nothing to send
        for number in range(4):
            now_s += nbytes / rate
            sizes.moved(nbytes, now_s, more=number < 3)
    assert sizes.rate == pytest.approx(rate, rel=0.01)
