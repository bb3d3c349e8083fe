"""Which servers share a link with workers, and the shares that follow from it."""

from __future__ import annotations

import msgspec
import pytest

from byteps.coordinator.machines import server_weights, spare_lanes
from byteps.placement import mixed_weights
from byteps.wire import Join

from .fake_job import SERVER_IDS, FakeJob, join, spec


def at(role: str, *addresses: str) -> list[Join]:
    """Members that joined from addresses, in this order."""
    return [
        msgspec.structs.replace(join(number, role=role), address=address)
        for number, address in enumerate(addresses)
    ]


def test_servers_with_workers_and_others_follow_the_formula() -> None:
    weights = server_weights(at("worker", "a", "b", "c", "d"), at("server", "x", "a", "b", "y", "c", "d"))
    colocated, alone = mixed_weights(4, 2)[0], mixed_weights(4, 2)[-1]
    assert weights == [alone, colocated, colocated, alone, colocated, colocated]


def test_servers_of_one_machine_divide_its_share() -> None:
    workers = at("worker", "a", "a", "b", "b", "c", "c")
    weights = server_weights(workers, at("server", "a", "a", "b", "c", "x", "x"))
    colocated, alone = mixed_weights(3, 1)[0], mixed_weights(3, 1)[-1]
    assert weights == [colocated / 2, colocated / 2, colocated, colocated, alone / 2, alone / 2]


@pytest.mark.parametrize(
    ("workers", "servers"),
    [("abcd", "wxyz"), ("abcd", "abcd"), ("abcd", "a"), ("aaaa", "aa"), (["", ""], "xy")],
    ids=["none with workers", "all with workers", "one with a worker", "one machine", "not told"],
)
def test_shares_are_equal_where_there_is_nothing_to_mix(workers: str, servers: str) -> None:
    assert server_weights(at("worker", *workers), at("server", *servers)) is None


def test_what_a_server_tells_counts_first() -> None:
    servers = at("server", "a", "x", "y")
    servers[1] = msgspec.structs.replace(servers[1], weight=4.0)
    assert server_weights(at("worker", "a", "b"), servers) == [1.0, 4.0, 1.0]


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_impossible_weights_do_not_come_in(weight: float) -> None:
    text = msgspec.msgpack.encode(msgspec.structs.replace(join(0, role="server"), weight=weight))
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(text, type=Join)


def test_servers_without_a_number_get_the_share_of_the_number_that_they_are_given() -> None:
    """The coordinator knows the shares only once it has given out the numbers."""
    job = FakeJob(2, 3)
    for member, (number, address) in enumerate([(-1, "x"), (0, "a"), (-1, "b")]):
        one = msgspec.structs.replace(join(number, role="server"), address=address)
        job.send(SERVER_IDS + member, msgspec.structs.replace(one, incarnation=address))
    for rank, one in enumerate(at("worker", "a", "b")):
        job.send(rank, one)
    job.declare(0, spec("x", (1 << 20,)))
    for member in range(3):
        job.install(member)
    (placement,) = job.answers(0)
    loads = [0, 0, 0]
    for part in placement.parts:  # type: ignore[union-attr]
        loads[part.server] += part.nbytes
    # Numbers: a 0, x 1, b 2. With two workers and one server of its own: 1/4, 1/4 and 1/2.
    assert [load / (4 << 20) for load in loads] == pytest.approx([0.25, 0.5, 0.25], rel=0.02)


@pytest.mark.parametrize(
    ("workers", "servers", "spare"),
    [
        ("abc", "xy", 1),
        ("abc", "xx", 1),
        ("aab", "xy", 0),
        ("abc", "xa", 0),
        (["a", ""], "x", 0),
        ("a", "", 0),
    ],
    ids=["apart", "servers share", "workers share", "server beside a worker", "not told", "no servers"],
)
def test_a_lane_is_spare_where_each_worker_has_a_machine_to_itself(
    workers: str, servers: str, spare: int
) -> None:
    able, unable = [
        [
            [msgspec.structs.replace(one, may_add_lanes=may) for one in at(role, *addresses)]
            for role, addresses in (("worker", workers), ("server", servers))
        ]
        for may in (True, False)
    ]
    assert spare_lanes(*able) == spare
    assert spare_lanes(able[0], unable[1]) == spare_lanes(unable[0], able[1]) == 0
