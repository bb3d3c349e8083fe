"""How fast a training step can be: closed forms for gradients that are ready from last layer to first.

Layers count from 0 in forward order. ``costs`` are the seconds that each layer's bytes take on the busiest
direction of a link. The forms follow the analysis of priority scheduling in ByteScheduler (Peng et al.,
SOSP 2019) and of mixed placement in BytePS (Jiang et al., OSDI 2020): with a strict order, immediate
preemption and no overhead, a layer's bytes wait only for those of the layers before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Timed(Protocol):
    """A layer, as far as its times matter."""

    @property
    def forward_s(self) -> float:
        """Computing time of its forward pass, seconds."""

    @property
    def backward_s(self) -> float:
        """Computing time of its backward pass, seconds."""


class Sized(Protocol):
    """A layer, as far as its bytes matter."""

    @property
    def nbytes(self) -> int:
        """Bytes of its gradients."""


def link_share(workers: int, servers: int) -> float:
    """How often a gradient's bytes cross the busiest link in each direction, if all links are equally fast.

    Args:
        workers: How many ranks.
        servers: Servers on hosts of their own; 0 for all-reduce by rings, or servers on the workers' hosts,
            which cross the links as often.

    Raises:
        ValueError: No worker, or a negative number of servers.
    """
    if servers == 0:
        return mixed_share(workers, 0)
    if workers < 1 or servers < 0:
        raise ValueError(f"{workers} workers with {servers} servers cannot be")
    return max(1.0, workers / servers)


def mixed_share(workers: int, servers: int) -> float:
    """The same for a server on every worker's host and some on hosts of their own, with the best weights.

    Each link of a worker, and each of a server, carries 2n(n-1)/(n^2+kn-2k) of the gradients' bytes.

    Args:
        workers: n, each with a server on its host.
        servers: k, servers on hosts of their own. More than n cannot be put to use.

    Raises:
        ValueError: No worker, or a negative number of servers.
    """
    if workers < 1 or servers < 0:
        raise ValueError(f"{workers} workers with {servers} servers cannot be")
    n, k = workers, min(workers, servers)
    return 2 * n * (n - 1) / (n * n + k * n - 2 * k) if n > 1 else 0.0


def costs(layers: Sequence[Sized], share: float, goodput: float) -> list[float]:
    """Seconds that each layer's bytes take.

    Args:
        layers: The model.
        share: See ``link_share``.
        goodput: Payload bytes per second of a link in one direction.
    """
    return [share * layer.nbytes / goodput for layer in layers]


def limit_s(layers: Sequence[Timed], costs: Sequence[float]) -> float:
    """Time of a step that no order of sending can beat, seconds.

    For some layer, its bytes and all more urgent ones, and the computing of it and all layers behind it, come
    one after the other.
    """
    behind = sum(layer.forward_s + layer.backward_s for layer in layers)
    longest = sent = 0.0
    for layer, cost in zip(layers, costs, strict=True):
        sent += cost
        longest = max(longest, sent + behind)
        behind -= layer.forward_s + layer.backward_s
    return longest


def fifo_s(layers: Sequence[Timed], costs: Sequence[float]) -> float:
    """Time of a step that sends first what is ready first, without a gap, seconds."""
    forward = sum(layer.forward_s for layer in layers)
    sent = ready = 0.0
    for layer, cost in zip(reversed(layers), reversed(costs), strict=True):
        ready += layer.backward_s
        sent = max(sent, ready) + cost
    return forward + sent


def fifo_servers_s(layers: Sequence[Timed], costs: Sequence[float]) -> float:
    """The same for servers that get, and give back, a layer as a whole: pushed, then pulled, seconds."""
    forward = sum(layer.forward_s for layer in layers)
    pushed = pulled = ready = 0.0
    for layer, cost in zip(reversed(layers), reversed(costs), strict=True):
        ready += layer.backward_s
        pushed = max(pushed, ready) + cost
        pulled = max(pulled, pushed) + cost
    return forward + pulled


def serial_s(layers: Sequence[Timed], costs: Sequence[float]) -> float:
    """Time of a step that computes, then pushes everything, then pulls everything, seconds."""
    return compute_s(layers) + 2 * sum(costs)


def compute_s(layers: Sequence[Timed]) -> float:
    """Time of a step without communication, seconds."""
    return sum(layer.forward_s + layer.backward_s for layer in layers)
