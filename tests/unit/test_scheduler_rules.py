"""What holds for every schedule: the bound on bytes in flight, the order, and every byte goes once."""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from byteps.scheduler import Part, Scheduler, Task


@dataclass
class Watched:
    """A scheduler whose every start is checked against the rules."""

    credit_bytes: int
    partition_bytes: int
    policy: str
    in_flight: list[Part] = field(default_factory=list)
    waiting: list[tuple[int, int, int]] = field(default_factory=list)  # (-priority, task, part), in order
    covered: dict[str, list[range]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(
            credit_bytes=self.credit_bytes, partition_bytes=self.partition_bytes, policy=self.policy
        )
        self.tasks: list[Task] = []

    def submit(self, nbytes: int, priority: int) -> None:
        number = len(self.tasks)
        task = self.scheduler.submit(str(number), nbytes, self.start, priority=priority)
        self.tasks.append(task)
        urgency = 0 if self.policy == "fifo" else -priority
        parts = max(1, -(-nbytes // self.partition_bytes))
        self.waiting = sorted([*self.waiting, *((urgency, number, part) for part in range(parts))])
        task.ready()

    def start(self, part: Part) -> None:
        number = int(part.task.name)
        urgency = 0 if self.policy == "fifo" else -part.task.priority
        assert (urgency, number, part.index) == self.waiting.pop(0), "the first in order starts first"
        others = sum(other.nbytes for other in self.in_flight)
        self.in_flight.append(part)
        assert others == 0 or others + part.nbytes <= self.credit_bytes
        assert self.policy != "stop-and-wait" or len(self.in_flight) == 1
        covered = self.covered.setdefault(part.task.name, [])
        covered.append(range(part.offset, part.offset + part.nbytes))

    def finish(self, index: int) -> None:
        if self.in_flight:
            self.in_flight.pop(index % len(self.in_flight)).finish()

    def assert_busy(self) -> None:
        """No part waits that could go."""
        if not self.waiting:
            return
        held = sum(part.nbytes for part in self.in_flight)
        assert held == self.scheduler.in_flight_bytes
        _, number, index = self.waiting[0]
        task = self.tasks[number]
        size = min(self.partition_bytes, task.nbytes - index * self.partition_bytes)
        if self.policy == "stop-and-wait":
            assert self.in_flight
        else:
            assert held > 0
            assert held + size > self.credit_bytes


SIZES = st.integers(0, 40)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), SIZES, st.integers(-3, 3)),
        st.tuples(st.just("finish"), st.integers(0, 9), st.just(0)),
    ),
    max_size=40,
)


@pytest.mark.parametrize("policy", ["priority", "fifo", "stop-and-wait"])
@settings(max_examples=150, deadline=None)
@given(credit_bytes=st.integers(1, 40), partition_bytes=st.integers(1, 20), steps=STEPS)
def test_every_schedule(
    policy: str, credit_bytes: int, partition_bytes: int, steps: list[tuple[str, int, int]]
) -> None:
    watched = Watched(credit_bytes, partition_bytes, policy)
    for what, number, priority in steps:
        if what == "submit":
            watched.submit(number, priority)
        else:
            watched.finish(number)
        watched.assert_busy()
    while watched.in_flight:
        watched.finish(0)
    assert not watched.waiting
    assert watched.scheduler.in_flight_bytes == 0
    for task in watched.tasks:
        task.future.result(0)
        bytes_started = sorted(itertools.chain(*watched.covered[task.name]))
        assert bytes_started == list(range(task.nbytes))


# The example of the ByteScheduler paper: three layers whose forward and backward passes take one unit each,
# and whose gradients take 1.5, 3 and 1.5 units on the link, in either direction.
UNIT = 1000
GRADIENTS = (1.5, 3.0, 1.5)


class Step:
    """A step on a virtual clock: backward pass, pushes and pulls over a duplex link, forward pass."""

    def __init__(self, credit: float, partition: float, policy: str) -> None:
        self.now = 0.0
        self.scheduler = Scheduler(
            credit_bytes=int(credit * UNIT), partition_bytes=int(partition * UNIT), policy=policy
        )
        self.up_free = self.down_free = 0.0
        self.events: list[
            tuple[float, int, Part | int]
        ] = []  # (time, tie, result of a part or layer to begin)
        self.ties = itertools.count()

    def at(self, time: float, event: Part | int) -> None:
        heapq.heappush(self.events, (time, next(self.ties), event))

    def start(self, part: Part) -> None:
        """A server sends a part back when it has come whole."""
        took = part.nbytes / UNIT
        self.up_free = max(self.up_free, self.now) + took
        self.down_free = max(self.down_free, self.up_free) + took
        self.at(self.down_free, part)

    def run(self) -> float:
        """When the next step's backward pass could begin."""
        layers = len(GRADIENTS)
        arrived = [0.0] * layers
        for layer in range(layers):
            self.at(float(layers - layer), layer)
        while self.events:
            self.now, _, event = heapq.heappop(self.events)
            if isinstance(event, Part):
                arrived[int(event.task.name)] = self.now
                event.finish()
            else:
                nbytes = int(GRADIENTS[event] * UNIT)
                self.scheduler.submit(str(event), nbytes, self.start, priority=-event).ready()
        end = 0.0
        for time in arrived:
            end = max(end, time) + 1.0
        return end


@pytest.mark.parametrize(
    ("credit", "partition", "policy", "units"),
    [
        (100.0, 100.0, "fifo", 13.0),  # whole tensors, first come first served
        (1.0, 0.5, "fifo", 10.5),  # pushes and pulls overlap
        (1.0, 0.5, "priority", 9.0),  # the limit of 8.5, and half a unit until the last partition is back
        (100.0, 0.5, "priority", 10.5),  # without a bound on what is in flight nothing can be overtaken
    ],
)
def test_the_papers_example(credit: float, partition: float, policy: str, units: float) -> None:
    assert Step(credit, partition, policy).run() == units
