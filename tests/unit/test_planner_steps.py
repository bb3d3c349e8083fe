"""Simulated steps against the closed forms: equal without overhead, within stated terms with it."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from byteps.placement import Placer
from byteps.planner import bounds
from byteps.planner.cluster import IDEAL, Cluster, DataPath
from byteps.planner.profile import Profile, shipped
from byteps.planner.systems import Rings, Servers

from .models import CELL, FRICTIONLESS, cluster, model, path, profiles

TOY = model((3, 1, 1), (6, 1, 1), (3, 1, 1))
"""The example of ByteScheduler's paper: 1.5, 3 and 1.5 units of bytes, times of 1; two cells are a unit."""


def costs(profile: Profile, share: float, cells_per_s: float = 1.0) -> list[float]:
    return bounds.costs(profile.layers, share, cells_per_s * CELL)


def test_the_papers_example_takes_13_units_first_come_first_served_and_9_scheduled() -> None:
    machines = cluster(2, 2, cells_per_s=2)
    assert bounds.fifo_servers_s(TOY.layers, costs(TOY, 1, 2)) == pytest.approx(13)
    assert Servers(2).simulate(TOY, machines, IDEAL).step_s == pytest.approx(13)
    partition_s = 0.5
    assert bounds.limit_s(TOY.layers, costs(TOY, 1, 2)) + partition_s == pytest.approx(9)
    assert Servers(2).simulate(TOY, machines, FRICTIONLESS).step_s == pytest.approx(9)


def test_closed_forms_by_hand() -> None:
    layers = model((2, 1, 2), (4, 1, 2)).layers
    each = [2.0, 4.0]
    assert bounds.compute_s(layers) == 6
    assert bounds.limit_s(layers, each) == max(2 + 6, 6 + 3)
    assert bounds.fifo_s(layers, each) == 2 + max(2 + 4 + 2, 4 + 2)
    assert bounds.fifo_servers_s(layers, each) == 2 + (2 + 4 + 4 + 2)
    assert bounds.serial_s(layers, each) == 6 + 12


@pytest.mark.parametrize(
    ("workers", "servers", "share"), [(4, 0, 1.5), (4, 4, 1), (4, 2, 1.2), (4, 9, 1), (2, 1, 1), (1, 3, 0)]
)
def test_mixed_servers_carry_what_the_formula_says(workers: int, servers: int, share: float) -> None:
    assert bounds.mixed_share(workers, servers) == pytest.approx(share)
    machines = Cluster(workers=workers, servers=servers, link_gbit=1)
    assert Servers(servers).share(machines) == pytest.approx(share)


@pytest.mark.parametrize(("workers", "servers", "share"), [(4, 0, 1.5), (4, 4, 1), (4, 2, 2), (4, 8, 1)])
def test_servers_apart_and_rings_carry_what_the_formula_says(
    workers: int, servers: int, share: float
) -> None:
    assert bounds.link_share(workers, servers) == pytest.approx(share)
    system = Servers(servers) if servers else Rings(scheduled=True)
    machines = Cluster(workers=workers, servers=servers, link_gbit=1, colocated=servers == 0)
    assert system.share(machines) == pytest.approx(share)


@pytest.mark.parametrize("share", [bounds.link_share, bounds.mixed_share])
def test_impossible_numbers_are_refused(share: object) -> None:
    assert callable(share)
    for workers, servers in ((0, 1), (2, -1)):
        with pytest.raises(ValueError, match=f"{workers} workers with {servers} servers"):
            share(workers, servers)


@settings(max_examples=60, deadline=None)
@given(profiles)
def test_first_come_first_served_equals_its_closed_forms(profile: Profile) -> None:
    step_s = Servers(3).simulate(profile, cluster(3, 3), IDEAL).step_s
    assert step_s == pytest.approx(bounds.fifo_servers_s(profile.layers, costs(profile, 1)))
    step_s = Rings(scheduled=False).simulate(profile, cluster(4, 0), IDEAL).step_s
    assert step_s == pytest.approx(bounds.fifo_s(profile.layers, costs(profile, 1.5)))


@settings(max_examples=60, deadline=None)
@given(profiles)
def test_scheduled_rings_reach_the_limit_but_for_one_partition(profile: Profile) -> None:
    one_at_a_time = dataclasses.replace(FRICTIONLESS, credit_bytes=CELL)
    step_s = Rings(scheduled=True).simulate(profile, cluster(4, 0), one_at_a_time).step_s
    limit_s = bounds.limit_s(profile.layers, costs(profile, 1.5))
    assert limit_s * (1 - 1e-9) <= step_s <= limit_s + 1.5 + 1e-9


@settings(max_examples=100, deadline=None)
@given(profiles, st.integers(1, 4), st.integers(0, 1), st.floats(0, 0.01), st.floats(0, 0.05))
def test_servers_are_between_the_limit_and_the_stated_terms(
    profile: Profile, size: int, colocated: int, overhead_s: float, latency_s: float
) -> None:
    """Terms: credit and a partition ahead of an urgent one, one the other way, and what is handed over."""
    machines = cluster(4, 0 if colocated else 4, cells_per_s=4, latency_s=latency_s)
    settings = path(overhead_s, size, 4)
    step_s = Servers(machines.servers).simulate(profile, machines, settings).step_s
    alone = costs(profile, 1.5 if colocated else 1.0, 4)
    assert step_s >= bounds.limit_s(profile.layers, alone) * (1 - 1e-9)
    crowding = at_one_server(profile, settings, machines) if colocated else [0.0] * len(alone)
    # A frame is a cell or less; a server handles those of all workers, in both directions.
    frames = [-(-layer.nbytes // CELL) for layer in profile.layers]
    handling = [2 * 4 * count * overhead_s for count in frames]
    loaded = [sum(parts) for parts in zip(alone, crowding, handling, strict=True)]
    partition_s = 4 * size / 4 if colocated else size / 4
    ahead_s = 1.5 * 4 * size / 4 + 2 * partition_s + 2 * settings.handed_over_s(machines.bytes_per_s)
    once_s = 2 * latency_s + 16 * overhead_s
    assert step_s <= bounds.limit_s(profile.layers, loaded) + ahead_s + once_s


def at_one_server(profile: Profile, settings: DataPath, machines: Cluster) -> list[float]:
    """Seconds that each layer takes to, and back from, the server that has most of it."""
    placer = Placer(machines.workers, 1, settings.partition_bytes)
    found = []
    for parts in placer.place([layer.nbytes for layer in profile.layers]):
        loads = [sum(part.nbytes for part in parts if part.server == server) for server in range(4)]
        found.append(2 * (machines.workers - 1) * max(loads) / machines.bytes_per_s)
    return found


def test_a_server_is_shared_by_all_workers() -> None:
    """One partition from four workers takes their server's link four times, in, and out again."""
    profile = model((1, 1, 1))
    machines = dataclasses.replace(cluster(4, 4), server_link_gbit=0.0)
    assert Servers(4).simulate(profile, machines, FRICTIONLESS).step_s == pytest.approx(1 + 4 + 4 + 1)
    # Four of them, of one layer, are on four servers at once.
    profile = model((4, 1, 1))
    plenty = dataclasses.replace(FRICTIONLESS, credit_bytes=8 * CELL)
    assert Servers(4).simulate(profile, machines, plenty).step_s == pytest.approx(1 + 7 + 4 + 1)


def test_a_small_credit_leaves_links_idle() -> None:
    profile = shipped("bert_large")
    machines = Cluster(workers=8, servers=8, link_gbit=25)
    small, large = (
        Servers(8).simulate(profile, machines, DataPath(credit_bytes=credit)).step_s
        for credit in (128 << 10, 8 << 20)
    )
    assert small > 1.5 * large


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(["resnet50", "vgg16"]), st.sampled_from([0, 2, 4]), st.floats(1, 50), st.floats(1, 4))
def test_faster_links_never_make_a_step_slower(name: str, servers: int, rate: float, factor: float) -> None:
    profile = shipped(name)
    slow = Cluster(workers=4, servers=4, link_gbit=rate)
    before_s, after_s = (
        Servers(servers).simulate(profile, machines, DataPath()).step_s
        for machines in (slow, slow.at(factor * rate))
    )
    assert after_s <= before_s * 1.005  # sizes of frames and credit are whole cells


def test_waiting_for_all_results_hides_no_forward_pass() -> None:
    profile = shipped("vgg16")
    machines = Cluster(workers=4, servers=4, link_gbit=10)
    crossing = Servers(4).simulate(profile, machines, DataPath()).step_s
    waiting = Servers(4).simulate(profile, machines, DataPath(), crosses=False).step_s
    assert crossing < waiting <= crossing + sum(layer.forward_s for layer in profile.layers) + 0.02


def test_one_worker_sends_nothing() -> None:
    profile = shipped("resnet50")
    machines = Cluster(workers=1, link_gbit=0.001)
    for system in (Servers(0), Rings(scheduled=True), Rings(scheduled=False)):
        step_s = system.simulate(profile, machines, DataPath()).step_s
        assert step_s == pytest.approx(bounds.compute_s(profile.layers))
