"""How fast a training step can be: closed forms for gradients that are ready from last layer to first.

Layers count from 0 in forward order. ``costs`` are the seconds that each layer's bytes take on the busiest
direction of a link. The forms are those of the analysis of priority scheduling of gradients: with a strict
order, immediate preemption and no overhead, a layer's bytes wait only for those of the layers before it.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.emulated.profiles import Layer


def link_share(workers: int, servers: int) -> float:
    """How often a gradient's bytes cross a worker's link in each direction.

    Args:
        workers: How many ranks.
        servers: Servers on hosts of their own, as fast as the workers'; 0 for all-reduce by rings, or servers
            on the workers' hosts, which cross the links as often.

    Raises:
        ValueError: So many servers that neither form holds.
    """
    if servers == 0:
        return 2 * (workers - 1) / workers
    if servers != workers:
        raise ValueError(
            f"{workers} workers with {servers} servers: give as many servers as workers, or none"
        )
    return 1.0


def costs(layers: Sequence[Layer], share: float, goodput: float) -> list[float]:
    """Seconds that each layer's bytes take.

    Args:
        layers: The model.
        share: See ``link_share``.
        goodput: Payload bytes per second of a link in one direction.
    """
    return [share * layer.nbytes / goodput for layer in layers]


def limit_s(layers: Sequence[Layer], costs: Sequence[float]) -> float:
    """Time of a step that no order of sending can beat, seconds.

    For some layer, its bytes and all more urgent ones, and the computing of it and all layers behind it, come
    one after the other.
    """
    return max(
        sum(costs[: k + 1]) + sum(layer.forward_s + layer.backward_s for layer in layers[k:])
        for k in range(len(layers))
    )


def fifo_s(layers: Sequence[Layer], costs: Sequence[float]) -> float:
    """Time of a step that sends first what is ready first, without a gap, seconds."""
    forward = sum(layer.forward_s for layer in layers)
    sent = 0.0
    ready = 0.0
    for layer, cost in zip(reversed(layers), reversed(costs), strict=True):
        ready += layer.backward_s
        sent = max(sent, ready) + cost
    return forward + sent


def serial_s(layers: Sequence[Layer], costs: Sequence[float]) -> float:
    """Time of a step that computes, then pushes everything, then pulls everything, seconds."""
    return sum(layer.forward_s + layer.backward_s for layer in layers) + 2 * sum(costs)
