"""A summary in words and tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from byteps.diagnostics import count, size, table
from byteps.trace.summary import LinkUse, RankSummary, Summary, TensorSummary

_HIDDEN = 0.05
"""Less exposed communication than this share of a step is not worth advice."""
_OFTEN = 1.5
"""A rank is late if it comes last so many times as often as its turn would be."""
_LINK_COLUMNS = ("push MB/s", "of best", "result MB/s", "of best")
_FULL = 0.8
"""So much of the best rate counts as a full link."""


def lines(summary: Summary, top: int) -> Iterator[str]:
    """The summary for people.

    Args:
        summary: what to say.
        top: how many tensors to show.
    """
    yield from _opening(summary)
    yield ""
    yield from table(
        (*("rank", "steps", "ms/step", "compute", "exposed", "share"), *_LINK_COLUMNS),
        [_rank_row(rank) for rank in summary.ranks],
    )
    shown = summary.tensors[:top]
    if shown:
        yield ""
        more = f" (of {len(summary.tensors)})" if len(shown) < len(summary.tensors) else ""
        yield f"tensors that training waited for longest{more}; ms, stall per step, the rest per partition:"
        yield from table(
            ("tensor", "size", "stall", "ready", "queued", "pushed", "summed", "returned"),
            [_tensor_row(tensor, bool(summary.servers)) for tensor in shown],
        )
    yield ""
    yield from _explanations(summary)


def _opening(summary: Summary) -> Iterator[str]:
    step_us = _mean([rank.step_us for rank in summary.ranks])
    exposed_us = _mean([rank.exposed_us for rank in summary.ranks])
    busy_us = _mean([rank.busy_us for rank in summary.ranks])
    servers = count(len(summary.servers), "server") if summary.servers else "no server's timeline"
    steps = min(rank.steps for rank in summary.ranks)
    yield f"{count(len(summary.ranks), 'rank')}, {servers}, {count(steps, 'step')}"
    share = exposed_us / step_us if step_us else 0.0
    yield (
        f"A step takes {_ms(step_us)} ms: {_ms(step_us - exposed_us)} ms of compute and {_ms(exposed_us)} ms "
        f"({share:.0%}) of communication that nothing hides."
    )
    if busy_us > 0:
        hidden = max(0.0, 1 - exposed_us / busy_us)
        yield f"Something is in flight for {_ms(busy_us)} ms of it; {hidden:.0%} of that is hidden."
    if share > _HIDDEN:
        yield from _causes(summary)


def _causes(summary: Summary) -> Iterator[str]:
    """What exposed communication waits for, as far as it can be told."""
    stalled = [tensor for tensor in summary.tensors if tensor.stall_us > 0]
    weight = sum(tensor.stall_us for tensor in stalled)
    if weight > 0:
        stages = {
            "to be sent, behind other tensors": _weighted(stalled, "queued_us", weight),
            "on the way to the server": _weighted(stalled, "pushed_us", weight),
            "for the last rank's contribution": _weighted(stalled, "summed_us", weight),
            "on the way back" if summary.servers else "for other ranks and on the way back": _weighted(
                stalled, "returned_us", weight
            ),
        }
        longest = max(stages, key=lambda stage: stages[stage])
        yield f"The partitions of stalling tensors spend most of their time waiting {longest}."
    late = [rank for rank, share in summary.latest.items() if share > _OFTEN / max(1, len(summary.ranks))]
    for rank in late:
        yield (
            f"Rank {rank} is the last to contribute to {summary.latest[rank]:.0%} of all sums; from the "
            f"first to the last contribution {_ms(summary.spread_us)} ms pass on average."
        )
    best = max(summary.ranks, key=lambda rank: rank.pushes.utilisation)
    if best.pushes.utilisation > _FULL:
        yield "The links are full: fewer bytes (compression) or more servers help, another order cannot."


def _rank_row(rank: RankSummary) -> tuple[str, ...]:
    share = rank.exposed_us / rank.step_us if rank.step_us else 0.0
    return (
        str(rank.rank),
        str(rank.steps),
        _ms(rank.step_us),
        _ms(rank.compute_us),
        _ms(rank.exposed_us),
        f"{share:.0%}",
        *_link_cells(rank.pushes),
        *_link_cells(rank.results),
    )


def _link_cells(use: LinkUse) -> tuple[str, str]:
    return f"{use.rate / 1e6:.1f}", f"{use.utilisation:.0%}"


def _tensor_row(tensor: TensorSummary, with_servers: bool) -> tuple[str, ...]:
    return (
        tensor.name,
        size(tensor.nbytes),
        _ms(tensor.stall_us),
        _ms(tensor.ready_us),
        _ms(tensor.queued_us),
        _ms(tensor.pushed_us),
        _ms(tensor.summed_us) if with_servers else "-",
        _ms(tensor.returned_us),
    )


def _explanations(summary: Summary) -> Iterator[str]:
    steps = "the optimizer's" if summary.marked else "rounds of the tensor used most often"
    yield f"steps: {steps}, the first left out; exposed: the training thread waited for results"
    yield "of best: bytes over what the best tenth of a second would have moved in all steps"
    ends = (
        "from the last contribution" if summary.servers else "from the push, as no server's timeline is given"
    )
    yield f"ready, queued, pushed, summed, returned: how long until it was so; returned: {ends}"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _weighted(tensors: Sequence[TensorSummary], stage: str, weight: float) -> float:
    return sum(tensor.stall_us * float(getattr(tensor, stage)) for tensor in tensors) / weight


def _ms(microseconds: float) -> str:
    return f"{microseconds / 1000:.2f}" if microseconds < 100_000 else f"{microseconds / 1000:.0f}"
