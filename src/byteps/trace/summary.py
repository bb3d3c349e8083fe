"""Where the time of training steps went: numbers, from a history."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from byteps.trace.history import History, Partition, RankHistory, Sum

_WINDOW_US = 100_000.0
"""Over so long a link's best rate is measured; a tenth of the time traced if that is less."""

Interval = tuple[float, float]


@dataclass(slots=True)
class LinkUse:
    """One direction of a rank's links; rates in bytes per second.

    Attributes:
        nbytes: what went through in all steps.
        rate: on average.
        best_rate: over the best stretch of a tenth of a second.
    """

    nbytes: int
    rate: float
    best_rate: float

    @property
    def utilisation(self) -> float:
        """Bytes over what the best rate would have moved, 0 to 1."""
        return self.rate / self.best_rate if self.best_rate else 0.0


@dataclass(slots=True)
class RankSummary:
    """A rank's average step, in microseconds.

    Attributes:
        rank: its number.
        steps: how many were looked at.
        step_us: length.
        exposed_us: the training thread waited for results.
        busy_us: something was in flight.
        pushes, results: use of the links.
    """

    rank: int
    steps: int
    step_us: float
    exposed_us: float
    busy_us: float
    pushes: LinkUse
    results: LinkUse

    @property
    def compute_us(self) -> float:
        """All that is not exposed."""
        return self.step_us - self.exposed_us


@dataclass(slots=True)
class TensorSummary:
    """One tensor, averaged over ranks and steps, in microseconds.

    Attributes:
        name: the user's.
        nbytes: size.
        stall_us: how long training threads waited for its result, in each step.
        ready_us, queued_us, pushed_us, summed_us, returned_us: how long its partitions took to be so.
            ``summed_us`` is 0 where servers' timelines were not given; "returned" then begins at "pushed".
    """

    name: str
    nbytes: int
    stall_us: float
    ready_us: float
    queued_us: float
    pushed_us: float
    summed_us: float
    returned_us: float


@dataclass(slots=True)
class Summary:
    """Where the time went.

    Attributes:
        marked: whether steps are the optimizer's; else they are rounds of the tensor used most often.
        ranks: by number.
        tensors: by stall, the worst first.
        servers: whose timelines were given.
        latest: for each rank, the share of sums to which it contributed last; empty without servers.
        spread_us: from the first contribution to the last, on average.
    """

    marked: bool
    ranks: list[RankSummary]
    tensors: list[TensorSummary]
    servers: list[int]
    latest: dict[int, float]
    spread_us: float


def summarise(history: History) -> Summary:
    """Average a history over its steps.

    Each rank's first step is left out where there are others: its begin is not known, and it is slower.
    """
    ranks, steps = [], 0
    stalls: dict[str, float] = defaultdict(float)
    kept: list[Partition] = []
    for rank in history.ranks:
        intervals = step_intervals(rank)
        if not intervals:
            continue
        begin, end = intervals[0][0], intervals[-1][1]
        partitions = [p for p in rank.partitions if begin <= p.returned <= end]
        exposed = clip(union(_exposed(rank)), begin, end)
        for name, stall_us in stall_by_tensor(rank, exposed).items():
            stalls[name] += stall_us
        ranks.append(_rank_summary(rank.rank, intervals, partitions, exposed))
        kept += partitions
        steps += len(intervals)
    return Summary(
        marked=any(rank.steps for rank in history.ranks),
        ranks=ranks,
        tensors=_tensors(kept, stalls, steps),
        servers=history.servers,
        latest=_latest(history.sums),
        spread_us=sum(each.end - each.begin for each in history.sums) / max(1, len(history.sums)),
    )


def step_intervals(rank: RankHistory) -> list[Interval]:
    """Begin and end of each step."""
    if rank.steps:
        ends = [step.end for step in rank.steps]
        if len(ends) > 1:
            return list(pairwise(ends))
        begin = min((p.ready for p in rank.partitions), default=rank.steps[0].begin)
        return [(min(begin, rank.steps[0].begin), ends[0])]
    if not rank.partitions:
        return []
    rounds: dict[str, dict[int, float]] = defaultdict(dict)
    for partition in rank.partitions:
        of_tensor = rounds[partition.tensor]
        of_tensor[partition.round] = min(partition.ready, of_tensor.get(partition.round, partition.ready))
    begins = sorted(max(rounds.values(), key=len).values())
    intervals = list(pairwise([*begins, rank.partitions[-1].returned]))
    return intervals[1:] if len(intervals) > 1 else intervals


def _exposed(rank: RankHistory) -> list[Interval]:
    """When the training thread waited: the thread that steps, or all where none does."""
    training = {step.thread for step in rank.steps}
    return [(w.begin, w.end) for w in rank.waits if not training or w.thread in training]


def _rank_summary(
    number: int, intervals: Sequence[Interval], partitions: Sequence[Partition], exposed: Sequence[Interval]
) -> RankSummary:
    begin, end = intervals[0][0], intervals[-1][1]
    count = len(intervals)
    busy = clip(union((p.pushing, p.returned) for p in partitions), begin, end)
    traced_us = end - begin
    return RankSummary(
        rank=number,
        steps=count,
        step_us=traced_us / count,
        exposed_us=total(exposed) / count,
        busy_us=total(busy) / count,
        pushes=link_use([(p.pushed, p.nbytes) for p in partitions], traced_us),
        results=link_use([(p.returned, p.nbytes) for p in partitions], traced_us),
    )


def link_use(moved: Sequence[tuple[float, int]], traced_us: float) -> LinkUse:
    """How well a direction was used.

    Args:
        moved: when (microseconds) how many bytes were through, in any order.
        traced_us: length of the time looked at.
    """
    window_us = min(_WINDOW_US, traced_us / 10)
    best = inside = 0
    ordered = sorted(moved)
    first = 0
    for at, nbytes in ordered:
        inside += nbytes
        while ordered[first][0] <= at - window_us:
            inside -= ordered[first][1]
            first += 1
        best = max(best, inside)
    nbytes = sum(size for _, size in moved)
    if traced_us <= 0:
        return LinkUse(nbytes, 0.0, 0.0)
    rate = nbytes / traced_us * 1e6
    return LinkUse(nbytes, rate, max(rate, best / window_us * 1e6))


def stall_by_tensor(rank: RankHistory, exposed: Sequence[Interval]) -> dict[str, float]:
    """Whose fault waiting was: each stretch of it belongs to the tensor whose result ended it.

    Args:
        rank: whose.
        exposed: when its training thread waited, in order and without overlap.
    """
    done: dict[tuple[str, int], float] = {}
    for partition in rank.partitions:  # in the order of their results
        done[partition.tensor, partition.round] = partition.returned
    results = sorted((at, tensor) for (tensor, _), at in done.items())
    stalls: dict[str, float] = defaultdict(float)
    i = 0
    for begin, end in exposed:
        at = begin
        while i < len(results) and results[i][0] <= begin:
            i += 1
        last = results[i][1] if i < len(results) else ""
        while i < len(results) and results[i][0] <= end:
            last = results[i][1]
            stalls[last] += results[i][0] - at
            at = results[i][0]
            i += 1
        stalls[last] += end - at  # until the thread ran again
    return stalls


def _tensors(partitions: Iterable[Partition], stalls: Mapping[str, float], steps: int) -> list[TensorSummary]:
    groups: dict[str, list[Partition]] = defaultdict(list)
    for partition in partitions:
        groups[partition.tensor].append(partition)
    found = [_tensor(name, group, stalls[name] / steps) for name, group in groups.items()]
    return sorted(found, key=lambda tensor: (-tensor.stall_us, tensor.name))


def _tensor(name: str, group: Sequence[Partition], stall_us: float) -> TensorSummary:
    # A sum is earlier than the push it needs where clocks are not known better than that.
    summed = [max(0.0, p.summed - p.pushed) if p.summed is not None else 0.0 for p in group]
    returned = [p.returned - p.pushed - late for p, late in zip(group, summed, strict=True)]
    n = len(group)
    return TensorSummary(
        name=name,
        nbytes=_size(group),
        stall_us=stall_us,
        ready_us=sum(p.queued - p.ready for p in group) / n,
        queued_us=sum(p.pushing - p.queued for p in group) / n,
        pushed_us=sum(p.pushed - p.pushing for p in group) / n,
        summed_us=sum(summed) / n,
        returned_us=sum(max(0.0, each) for each in returned) / n,
    )


def _size(group: Sequence[Partition]) -> int:
    """Bytes of a tensor: of the most complete round."""
    sizes: Counter[tuple[int, int]] = Counter()
    for partition in group:
        sizes[partition.rank, partition.round] += partition.nbytes
    return max(sizes.values())


def _latest(sums: Sequence[Sum]) -> dict[int, float]:
    last = Counter(each.last for each in sums)
    return {rank: last[rank] / len(sums) for rank in sorted(last)}


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same time without overlaps, in order."""
    merged: list[Interval] = []
    for begin, end in sorted(intervals):
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((begin, end))
    return merged


def clip(intervals: Iterable[Interval], begin: float, end: float) -> list[Interval]:
    """What of them lies between two moments."""
    cut = [(max(b, begin), min(e, end)) for b, e in intervals]
    return [(b, e) for b, e in cut if e > b]


def total(intervals: Iterable[Interval]) -> float:
    """Their length together."""
    return sum(end - begin for begin, end in intervals)
