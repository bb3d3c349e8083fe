"""Where a system's sums are made, by its name: it says how busy that makes which links."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from byteps.planner import bounds

WORKERS = 4
HOSTS = 2 * WORKERS
COLOCATED = ", colocated"
# Modes whose workers sum among themselves, by byteps's scheduler.
ALL_REDUCE = ("allreduce", "allreduce-cross")
RINGS = ("ddp", "split", "horovod", *ALL_REDUCE)
# Partitions are whole, so a server may get a little less than its share, and its link with it.
LEAST_SHARE = 0.98
_PLACE = re.compile(rf"(?P<colocated>{COLOCATED})?(?:, (?P<count>\d+) servers?)?$")


@dataclass(frozen=True, slots=True)
class Place:
    """Hosts of one job. Workers are on the first ``WORKERS`` hosts, servers of their own on the next ones.

    Args:
        servers: Host of each server.
        share: How often the gradients' bytes cross the busiest links, in each direction.
        busiest: Hosts whose links those are.
        least: What each of them carries at least.
    """

    servers: Sequence[int]
    share: float
    busiest: Sequence[int]
    least: float


def mode_of(name: str) -> str:
    """A job's name without what says where its servers are."""
    found = _PLACE.search(name)
    return name[: found.start()] if found else name


def place_of(name: str, mode: str) -> Place:
    """Where a job has its servers.

    Args:
        name: Ends with ``, colocated`` for servers on the workers' hosts, with ``, 2 servers`` for as many on
            hosts of their own, with both for both; else there are as many servers as workers.
        mode: What trains.
    """
    workers = range(WORKERS)
    if mode in RINGS:
        share = bounds.link_share(WORKERS, 0)
        return Place((), share, workers, share)
    found = _PLACE.search(name)
    assert found is not None, "the pattern matches nothing at all, too"
    count = int(found["count"] or (0 if found["colocated"] else WORKERS))
    apart = range(WORKERS, WORKERS + count)
    if found["colocated"]:
        hosts, share = (*workers, *apart), bounds.mixed_share(WORKERS, count)
        return Place(hosts, share, hosts, LEAST_SHARE * share if count else share)
    share = bounds.link_share(WORKERS, count)
    if count < WORKERS:
        return Place(apart, share, apart, LEAST_SHARE * share)
    return Place(apart, share, workers, share)
