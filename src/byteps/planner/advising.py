"""Which way to go, with which settings, and why, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from byteps.diagnostics import count, duration, size
from byteps.planner import bounds
from byteps.planner.choices import FIFO, SCHEDULED, Choice, Planner, Settings

AS_GOOD = 1.02
"""A step that takes this much longer is as good, if it needs less."""
WORTH = 0.99
"""Another setting must bring a step down to this share to be worth it."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do.

    Args:
        choice: The name of the way to go.
        servers: CPU machines to rent.
        partition_bytes, credit_bytes: Values of these settings; a credit of 0 is automatic.
        connections: Value of that setting; 0: automatic.
        step_s: Time of a step with them, seconds.
        words: Reasons, a sentence each.
    """

    choice: str
    servers: int
    partition_bytes: int
    credit_bytes: int
    connections: int
    step_s: float
    words: Sequence[str]


def advise(planner: Planner, choices: Sequence[Choice]) -> Advice:
    """The way that costs least, or without prices the fastest; among equals the one with fewest servers."""
    best = _best(choices)
    settings, step_s = _tuned(planner, best)
    cluster, path = planner.cluster, planner.path
    partition = settings.get("partition_bytes", 0) or (
        best.partition_bytes if best.name in (FIFO, SCHEDULED) else path.partition_bytes
    )
    credit = settings.get("credit_bytes", best.credit_bytes)
    lanes = path.lanes(cluster.bytes_per_s)
    connections = lanes if lanes > 1 and best.name not in (FIFO, SCHEDULED) else 0
    words = [
        *_why(planner, choices, best),
        *_settings(planner, best, settings, step_s),
        *_streams(planner, connections),
    ]
    return Advice(best.name, best.servers, partition, credit, connections, step_s, words)


def _best(choices: Sequence[Choice]) -> Choice:
    def worth(choice: Choice) -> float:
        return choice.epoch_cost or choice.step_s

    least = min(map(worth, choices))
    good = [choice for choice in choices if worth(choice) <= AS_GOOD * least]
    # Servers with the workers are what byteps does by itself, so they come before all-reduce.
    return min(good, key=lambda choice: (choice.servers, choice.name in (FIFO, SCHEDULED), worth(choice)))


def _tuned(planner: Planner, best: Choice) -> tuple[Settings, float]:
    """Settings that make a step faster by more than it is worth to mention, and its time with them."""
    chosen: Settings = {}
    step_s = best.step_s
    for other in planner.alternatives(best.name, best.servers):
        tried_s = planner.step(best.name, best.servers, {**chosen, **other}).step_s
        if tried_s < WORTH * step_s:
            chosen, step_s = {**chosen, **other}, tried_s
    return chosen, step_s


def _why(planner: Planner, choices: Sequence[Choice], best: Choice) -> Iterator[str]:
    machines = count(best.servers, "CPU machine") if best.servers else "no CPU machine"
    fifo = next(choice for choice in choices if choice.name == FIFO)
    gain = f"{fifo.step_s / best.step_s:.2f} x as fast as {FIFO}" if best is not fifo else "nothing is faster"
    yield f"Rent {machines}: {best.name}, {duration(best.step_s)} a step, {gain} ({duration(fifo.step_s)})."
    fastest = min(choices, key=lambda choice: choice.step_s)
    if fastest.step_s < best.step_s / AS_GOOD:
        reason = "but costs more" if best.epoch_cost else "but not by enough"
        yield f"{fastest.name} would be faster, {duration(fastest.step_s)} a step, {reason}."
    elif planner.cluster.servers > best.servers:
        yield f"More CPU machines would gain less than {100 * (AS_GOOD - 1):.0f} %."
    computing_s = bounds.compute_s(planner.profile.layers)
    if best.step_s <= AS_GOOD * computing_s:
        yield "Computing is the limit: the network is hidden behind it."
    else:
        share = 100 * computing_s / best.step_s
        yield f"{share:.0f} % of the step is computing, the rest waits for the network."


def _settings(planner: Planner, best: Choice, settings: Settings, step_s: float) -> Iterator[str]:
    if best.name in (FIFO, SCHEDULED):
        yield f"Parts of {size(best.partition_bytes)} balance waiting and preemption on these rings."
        return
    if not settings:
        yield from _kept(planner, best)
        return
    what = " and ".join(f"{name}={value}" for name, value in settings.items())
    yield f"Set {what}: {duration(step_s)} a step in place of {duration(best.step_s)}."


def _kept(planner: Planner, best: Choice) -> Iterator[str]:
    partition, given = planner.path.partition_bytes, planner.path.credit_bytes
    if best.credit_bytes == given:
        window = f"{given} (as given)" if given else "0 (automatic)"
        yield f"Keep partition_bytes={partition} and credit_bytes={window}: others gain less than 1 %."
        return
    automatic_s = planner.step(best.name, best.servers, {"credit_bytes": 0}).step_s
    reason = f"the automatic one leaves links idle, and a step would take {duration(automatic_s)}"
    yield f"Keep partition_bytes={partition}, set credit_bytes={best.credit_bytes}: {reason}."


def _streams(planner: Planner, connections: int) -> Iterator[str]:
    if connections:
        rate = planner.cluster.link_gbit
        yield f"Set connections={connections}: one cannot fill a link of {rate:g} Gbit/s."
