"""Placement by bytes: balance over published layer sizes, cutting, lanes, weights, release."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from byteps.dtypes import GRAIN_BYTES
from byteps.placement import Placer, mixed_weights
from byteps.planner.profile import shipped_layers

PROFILES = shipped_layers()
MIB = 1024 * 1024


def profile_bytes(name: str, itemsize: int = 4) -> list[int]:
    return [elements * itemsize for layer in PROFILES[name] for _, elements in layer["tensors"]]


@pytest.mark.parametrize("name", sorted(PROFILES))
@pytest.mark.parametrize("servers", range(2, 17))
def test_no_server_is_over_the_mean_by_more_than_two_percent(name: str, servers: int) -> None:
    placer = Placer(servers, lanes=1, partition_bytes=4 * MIB)
    sizes = profile_bytes(name)
    placer.place(sizes)
    assert sum(placer.loads) == sum(sizes)
    assert max(placer.loads) <= 1.02 * sum(sizes) / servers


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_lanes_of_a_server_are_balanced(name: str) -> None:
    parts = Placer(4, lanes=4, partition_bytes=4 * MIB).place(profile_bytes(name))
    lanes = dict.fromkeys(((server, lane) for server in range(4) for lane in range(4)), 0)
    for part in (part for tensor in parts for part in tensor):
        lanes[part.server, part.lane] += part.nbytes
    assert max(lanes.values()) <= 1.1 * sum(lanes.values()) / len(lanes)


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_balance_holds_when_a_model_comes_in_two_batches(name: str) -> None:
    placer = Placer(4, lanes=2, partition_bytes=4 * MIB)
    sizes = profile_bytes(name)
    placer.place(sizes[: len(sizes) // 2])
    placer.place(sizes[len(sizes) // 2 :])
    assert max(placer.loads) <= 1.02 * sum(sizes) / 4


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.one_of(st.integers(0, 300), st.integers(0, 40 * MIB)), max_size=30),
    servers=st.integers(1, 16),
    lanes=st.integers(1, 4),
    partition_bytes=st.integers(1, 16 * MIB),
)
def test_partitions_cover_each_tensor_in_whole_cells(
    sizes: list[int], servers: int, lanes: int, partition_bytes: int
) -> None:
    placer = Placer(servers, lanes, partition_bytes)
    placed = placer.place(sizes)
    for size, parts in zip(sizes, placed, strict=True):
        assert sum(part.nbytes for part in parts) == size
        assert all(part.nbytes % GRAIN_BYTES == 0 for part in parts[:-1])
        assert all(0 < part.nbytes < partition_bytes + GRAIN_BYTES for part in parts)
        assert all(part.server < servers and part.lane < lanes for part in parts)
        assert len(parts) == 1 or size == 0 or size > GRAIN_BYTES
    placer.release(part for parts in placed for part in parts)
    assert placer.loads == [0] * servers


def test_placement_is_the_same_for_the_same_batches() -> None:
    first, second = Placer(3, 2, 4 * MIB), Placer(3, 2, 4 * MIB)
    assert [first.place([5 * MIB, 7, 9 * MIB]), first.place([MIB])] == [
        second.place([5 * MIB, 7, 9 * MIB]),
        second.place([MIB]),
    ]


def test_partition_size_is_limited_by_the_setting_and_by_a_small_part_of_the_mean() -> None:
    placer = Placer(2, 1, 4 * MIB)
    assert placer.partition_size([10_000 * MIB]) == 4 * MIB
    assert placer.partition_size([150 * MIB, 250 * MIB]) == MIB
    assert placer.partition_size([10]) == GRAIN_BYTES


def test_what_was_placed_before_a_model_does_not_make_its_partitions_larger() -> None:
    placer = Placer(2, 1, 4 * MIB)
    broadcast, gradients = placer.place([200 * MIB] * 2), placer.place([200 * MIB] * 2)
    assert {part.nbytes for parts in (*broadcast, *gradients) for part in parts} == {MIB}


def test_a_tensor_on_its_own_is_cut_as_one_of_all() -> None:
    placer = Placer(2, 1, 4 * MIB)
    placer.place([200 * MIB] * 2)
    assert {part.nbytes for part in placer.place([MIB])[0]} == {MIB}


def test_tensors_of_one_shape_begin_with_different_servers() -> None:
    placed = Placer(4, 1, MIB).place([8 * MIB] * 400)
    last = Counter(parts[-1].server for parts in placed)
    assert set(last) == {0, 1, 2, 3}
    assert max(last.values()) <= 110
    assert all(count == 2 for parts in placed for count in Counter(part.server for part in parts).values())


def test_small_tensors_go_where_the_tensor_before_them_does() -> None:
    sizes = [nbytes for _ in range(400) for nbytes in (MIB, 256, 256)]
    placed = Placer(4, 2, 128 * 1024).place(sizes)
    for matrix, scale, bias in zip(placed[::3], placed[1::3], placed[2::3], strict=True):
        assert {(part.server, part.lane) for part in (matrix[-1], *scale, *bias)} == {
            (matrix[-1].server, matrix[-1].lane)
        }


@pytest.mark.parametrize("first", [[], [MIB]])
def test_many_small_tensors_are_spread(first: list[int]) -> None:
    placer = Placer(4, 1, MIB)
    placer.place([*first, *[256] * 100_000])
    assert max(placer.loads) <= 1.02 * sum(placer.loads) / 4


def test_a_few_small_tensors_by_themselves_are_dealt_out() -> None:
    placed = Placer(3, 1, MIB).place([4] * 6)
    assert Counter(part.server for (part,) in placed) == {0: 2, 1: 2, 2: 2}


def test_weights_set_the_shares() -> None:
    weights = mixed_weights(4, 2)
    placer = Placer(6, 1, 4 * MIB, weights)
    placer.place(profile_bytes("bert_large"))
    total = sum(placer.loads)
    assert [load / total for load in placer.loads] == pytest.approx(weights, rel=0.05)


def test_a_server_of_weight_zero_gets_nothing() -> None:
    placer = Placer(3, 1, 4 * MIB, [0.0, 1.0, 1.0])
    placer.place(profile_bytes("alexnet"))
    assert placer.loads[0] == 0


@pytest.mark.parametrize("workers", range(1, 9))
@pytest.mark.parametrize("cpu_servers", range(10))
def test_mixed_weights_follow_the_formula(workers: int, cpu_servers: int) -> None:
    weights = mixed_weights(workers, cpu_servers)
    assert len(weights) == workers + cpu_servers
    assert sum(weights) == pytest.approx(1)
    n, k = workers, cpu_servers
    if k < n:
        whole = n * n + k * n - 2 * k
        assert weights[:n] == pytest.approx([float(Fraction(n - k, whole))] * n)
        assert weights[n:] == pytest.approx([float(Fraction(2 * n - 2, whole))] * k)
    else:
        assert weights[:n] == [0.0] * n


@pytest.mark.parametrize(("workers", "cpu_servers"), [(2, 1), (4, 2), (8, 3)])
def test_mixed_weights_load_every_machine_alike(workers: int, cpu_servers: int) -> None:
    """A colocated machine pushes what others sum and takes n-1 pushes of what it sums itself."""
    weights = mixed_weights(workers, cpu_servers)
    colocated, cpu = weights[0], weights[-1]
    assert (1 - colocated) + (workers - 1) * colocated == pytest.approx(workers * cpu)


@pytest.mark.parametrize("weights", [[1.0], [0.0, 0.0], [-1.0, 2.0]])
def test_bad_weights_are_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="weights"):
        Placer(2, 1, MIB, weights)


def test_counts_below_one_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 server"):
        Placer(0, 1, MIB)
    with pytest.raises(ValueError, match="at least 1 worker"):
        mixed_weights(0, 1)


@pytest.mark.parametrize(
    ("workers", "cpu_servers", "colocated"), [(4, 1, 1), (4, 3, 2), (8, 3, 7), (2, 1, 1)]
)
def test_mixed_weights_load_links_alike_where_only_some_workers_have_a_server(
    workers: int, cpu_servers: int, colocated: int
) -> None:
    weights = mixed_weights(workers, cpu_servers, colocated)
    assert sum(weights) == pytest.approx(1)
    with_worker, cpu = weights[0], weights[-1]
    assert (1 - with_worker) + (workers - 1) * with_worker == pytest.approx(workers * cpu)


def test_mixed_weights_without_colocated_servers_are_equal() -> None:
    assert mixed_weights(4, 2, 0) == [0.5, 0.5]
    with pytest.raises(ValueError, match="mixed_weights"):
        mixed_weights(4, 0, 0)


def test_partitions_of_moved_tensors_share_the_lanes_whatever_stays() -> None:
    """What a broadcast has left behind on the first lane does not push gradients off it."""
    placer = Placer(2, 1, MIB)
    placer.place([90 * MIB] * 2)
    before = placer.place([40 * MIB + 5, 8, 50 * MIB])
    placer.release(part for parts in before for part in parts)
    after = placer.spread(before, 2)
    assert [[(part.server, part.nbytes) for part in parts] for parts in after] == [
        [(part.server, part.nbytes) for part in parts] for parts in before
    ]
    lanes = Counter[tuple[int, int]]()
    for part in (part for parts in after for part in parts):
        lanes[part.server, part.lane] += part.nbytes
    assert len(lanes) == 4
    assert max(lanes.values()) - min(lanes.values()) <= 2 * MIB
    assert {part.lane for part in placer.place([20 * MIB])[0]} == {0, 1}
    assert sum(placer.loads) == 180 * MIB + 90 * MIB + 13 + 20 * MIB
