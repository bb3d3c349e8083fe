"""How many connections does TCP need between a worker and a server? Each is on a host of its own; push_pull.

Links are as fast as the machine, with one worker and server and with two of each, or have 200 Mbit/s, and
50 ms to the other end and back. One job for each number of connections, by turns in any order, and one that
is left to choose (``default``). ``first`` is a job's first exchange, over links that have not been used yet;
``stream`` is the median of the later ones. Exchanges in which the default may go over to more connections do
not count. Jobs with the same setting differ by a tenth and more for as long as they run, so there are
several, one set after the other.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.cluster import Cluster
from benchmarks.common import Row, Table, report
from benchmarks.distance import DistantHosts
from benchmarks.jobs import Job
from benchmarks.starting import Starter
from byteps.communicator.changes import AHEAD

COUNTS = (1, 2, 3, 4, 6, 8)
DEFAULT = 0
# So many exchanges the default gets to go over to more connections.
CHOOSING = 24
RATE = "200mbit"
ROUND_TRIP_S = 0.05
# The default's part of the best.
SHARE = 0.9
# Until an exchange begins. Its tensors are written meanwhile, the first time to memory that is not there yet.
LEAD_S, FIRST_LEAD_S = 0.25, 1.5


@dataclass(frozen=True)
class Place:
    """Links to measure.

    Args:
        name: What they are.
        hosts: One half are for workers, the other for servers.
        tensors: Of one exchange.
        nbytes: Of each tensor.
        turns: Exchanges of each job that count, beside the first.
        jobs: With each setting.
    """

    name: str
    hosts: Cluster
    tensors: int
    nbytes: int
    turns: int
    jobs: int


@dataclass(frozen=True)
class Found:
    """What jobs with one setting did.

    Args:
        firsts: Bytes per second and direction of each job's first exchange.
        rates: Those of the later ones that count.
        connections: How many they used in the end, each worker to each server.
        chosen_after: Exchanges before they did; 0: they did from the start.
    """

    firsts: list[float]
    rates: list[float]
    connections: int
    chosen_after: int

    def joined(self, other: Found) -> Found:
        """With another job's."""
        connections = min(self.connections, other.connections)
        chosen_after = max(self.chosen_after, other.chosen_after)
        return Found(self.firsts + other.firsts, self.rates + other.rates, connections, chosen_after)


def places() -> dict[str, Place]:
    """What can be chosen."""
    pair, four, distant = Cluster(2, ""), Cluster(4, ""), DistantHosts(2, RATE, ROUND_TRIP_S)
    return {
        "pair": Place("as fast as can be, 1 worker, 1 server", pair, 4, 64 << 20, 11, 2),
        "four": Place("as fast as can be, 2 workers, 2 servers", four, 4, 64 << 20, 9, 2),
        "distant": Place(f"{RATE}, 50 ms, 1 worker, 1 server", distant, 2, 16 << 20, 5, 1),
    }


def measure(place: Place, counts: Sequence[int]) -> dict[int, Found]:
    """What jobs do, by their setting of ``connections``."""
    found = measure_once(place, counts)
    for _ in range(place.jobs - 1):
        found = {count: found[count].joined(each) for count, each in measure_once(place, counts).items()}
    return found


def measure_once(place: Place, counts: Sequence[int]) -> dict[int, Found]:
    """What one job of each setting does."""
    with place.hosts as hosts:
        half = hosts.hosts // 2
        starter = Starter(hosts, range(half), range(half, hosts.hosts))
        jobs = {count: start(starter, count) for count in counts}
        found = {count: choose(place, job, count == DEFAULT) for count, job in jobs.items()}
        for _ in range(place.turns):
            for count in random.sample(counts, len(counts)):
                found[count].rates.append(exchange(place, jobs[count])[0])
        for job in jobs.values():
            job.close()
    return found


def choose(place: Place, job: Job, may_choose: bool) -> Found:
    """A job's first exchange, and those in which it may go over to more connections."""
    first, before = exchange(place, job, FIRST_LEAD_S)
    found = Found([first], [], before, 0)
    for number in range(1, CHOOSING if may_choose else 1):
        _, used = exchange(place, job)
        if found.chosen_after and number >= found.chosen_after:
            break
        if used != found.connections:
            found = Found([first], [], used, number + AHEAD)
    return found


def exchange(place: Place, job: Job, lead_s: float = LEAD_S) -> tuple[float, int]:
    """Bytes per second and direction, and how many connections are used."""
    begin_s = time.monotonic() + lead_s
    answers = job.ask(tensors=place.tensors, nbytes=place.nbytes, begin=begin_s)
    took_s = max(answer["stream_s"] for answer in answers)
    return place.tensors * place.nbytes / took_s, min(answer["connections"] for answer in answers)


def start(starter: Starter, count: int) -> Job:
    """A job with that setting of ``connections``."""
    settings = {"BYTEPS_FORCE_DISTRIBUTED": "1", "BYTEPS_CONNECTIONS": str(count)}
    return starter.byteps("stream", "benchmarks.streaming", settings)


def median(rates: Sequence[float]) -> float:
    """Of bytes per second, in Mbit/s."""
    return statistics.median(rates) * 8e-6


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="TCP with several connections between worker and server")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--counts", type=int, nargs="+", default=COUNTS, help="of connections")
    parser.add_argument("--links", nargs="+", choices=tuple(places()), default=tuple(places()))
    arguments = parser.parse_args()
    counts = sorted({*arguments.counts, DEFAULT})
    rows: list[Row] = []
    lines: list[list[str | float]] = []
    for name in arguments.links:
        place = places()[name]
        found = measure(place, counts)
        lines += [
            [place.name, str(count or "default"), median(each.firsts), median(each.rates), each.connections]
            for count, each in found.items()
        ]
        default, best = found[DEFAULT], max(median(each.rates) for each in found.values())
        rows.append(Row(f"{place.name}, default / best", median(default.rates) / best, SHARE, least=True))
        if default.chosen_after:
            rows.append(Row(f"{place.name}, exchanges before more are used", default.chosen_after))
    table = Table(("links", "connections", "first Mbit/s", "stream Mbit/s", "used"), lines)
    report(
        "TCP with several connections, push_pull, each worker and direction",
        rows,
        as_json=arguments.json,
        table=table,
    )


if __name__ == "__main__":
    main()
