"""How many connections does TCP need between a worker and a server? Each is on a host of its own; push_pull.

Links are as fast as the machine, with one worker and server and with two of each, or have 200 Mbit/s, and
50 ms to the other end and back. One job for each number of connections, by turns. ``first`` is a job's first
exchange, over links that have not been used yet; ``stream`` is the median of the later ones.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.cluster import Cluster
from benchmarks.common import Row, Table, report
from benchmarks.distance import DistantHosts
from benchmarks.jobs import Job
from benchmarks.starting import Starter
from byteps.config import Config
from byteps.worker import settings_of

COUNTS = (1, 2, 3, 4, 6, 8)
RATE = "200mbit"
ROUND_TRIP_S = 0.05
# The default's part of the best.
SHARE = 0.9
# Until an exchange begins. Its tensors are written meanwhile, the first time to memory that is not there yet.
LEAD_S, FIRST_LEAD_S = 0.5, 2.0


@dataclass(frozen=True)
class Place:
    """Links to measure.

    Args:
        name: What they are.
        hosts: One half are for workers, the other for servers.
        tensors: Of one exchange.
        nbytes: Of each tensor.
        turns: Exchanges of each job that count, beside the first.
    """

    name: str
    hosts: Cluster
    tensors: int
    nbytes: int
    turns: int


def places() -> dict[str, Place]:
    """What can be chosen."""
    pair, four, distant = Cluster(2, ""), Cluster(4, ""), DistantHosts(2, RATE, ROUND_TRIP_S)
    return {
        "pair": Place("as fast as can be, 1 worker, 1 server", pair, 4, 64 << 20, 5),
        "four": Place("as fast as can be, 2 workers, 2 servers", four, 4, 64 << 20, 5),
        "distant": Place(f"{RATE}, 50 ms, 1 worker, 1 server", distant, 2, 16 << 20, 5),
    }


def rates(place: Place, counts: Sequence[int]) -> dict[int, list[float]]:
    """Bytes per second of each exchange and direction, by number of connections."""
    with place.hosts as hosts:
        half = hosts.hosts // 2
        starter = Starter(hosts, range(half), range(half, hosts.hosts))
        jobs = {count: start(starter, count) for count in counts}
        found: dict[int, list[float]] = {count: [] for count in counts}
        for turn in range(1 + place.turns):
            for count, job in jobs.items():
                begin_s = time.monotonic() + (LEAD_S if turn else FIRST_LEAD_S)
                answers = job.ask(tensors=place.tensors, nbytes=place.nbytes, begin=begin_s)
                took_s = max(answer["stream_s"] for answer in answers)
                found[count].append(place.tensors * place.nbytes / took_s)
        for job in jobs.values():
            job.close()
    return found


def start(starter: Starter, count: int) -> Job:
    """A job with so many connections between worker and server."""
    settings = {"BYTEPS_FORCE_DISTRIBUTED": "1", "BYTEPS_CONNECTIONS": str(count)}
    return starter.byteps("stream", "benchmarks.streaming", settings)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="TCP with several connections between worker and server")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--counts", type=int, nargs="+", default=COUNTS, help="of connections")
    parser.add_argument("--links", nargs="+", choices=tuple(places()), default=tuple(places()))
    arguments = parser.parse_args()
    default = settings_of(Config()).lanes
    counts = sorted({*arguments.counts, default})
    rows: list[Row] = []
    lines: list[list[str | float]] = []
    for name in arguments.links:
        place = places()[name]
        found = rates(place, counts)
        streams = {count: statistics.median(each[1:]) for count, each in found.items()}
        lines += [
            [place.name, str(count), each[0] * 8e-6, streams[count] * 8e-6] for count, each in found.items()
        ]
        best = max(streams.values())
        rows.append(
            Row(f"{place.name}, {default} (default) / best", streams[default] / best, SHARE, least=True)
        )
    table = Table(("links", "connections", "first Mbit/s", "stream Mbit/s"), lines)
    report(
        "TCP with several connections, push_pull, each worker and direction",
        rows,
        as_json=arguments.json,
        table=table,
    )


if __name__ == "__main__":
    main()
