"""The sentences about rounds in flight, in the user's names for tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import msgspec

Missing = Sequence[tuple[int, float]]
"""(rank, seconds since it was last heard) of those who have not contributed to a round."""

_OWN_KINDS = ("push_pull.", "gradient.")
_SHOWN = 20
_UNITS = ("B", "KiB", "MiB", "GiB")


class Round(msgspec.Struct, frozen=True):
    """A round in flight on a worker.

    Attributes:
        name: of the tensor, on the wire.
        number: of the round, from 1.
        nbytes: size of the tensor.
        age_s: time since it was submitted.
        unresolved: partitions whose result is not in place yet.
        late: who has not contributed; None where nobody could say.
    """

    name: str
    number: int
    nbytes: int
    age_s: float
    unresolved: int
    late: Missing | None


class OpenRound(msgspec.Struct, frozen=True):
    """A round that a server sums: one partition.

    Attributes:
        name: of the tensor, on the wire.
        number: of the round, from 1.
        partition: its index in the tensor.
        nbytes: size of the partition.
        ranks: whose contribution is not complete.
    """

    name: str
    number: int
    partition: int
    nbytes: int
    ranks: Sequence[int]


def stall(name: str, number: int, late: Missing | None, waited_s: float) -> str:
    """One sentence: ``step 812, layer4.weight: waiting for rank 5, last heard 3.2 s ago, 10 s so far``."""
    return f"{_where(name, number)}: {_waiting(late)}, {waited_s:.0f} s so far"


def describe_rounds(rounds: Iterable[Round]) -> list[str]:
    """One line per round in flight on a worker, the oldest first."""
    lines = []
    for one in sorted(rounds, key=lambda one: -one.age_s):
        parts = f"{count(one.unresolved, 'partition')} unresolved"
        who = _waiting(one.late)
        what = f"{_where(one.name, one.number)}: {size(one.nbytes)}"
        lines.append(f"{what}, in flight for {one.age_s:.1f} s, {parts}, {who}")
    return lines


def describe_open(rounds: Iterable[OpenRound]) -> list[str]:
    """One line per tensor, round and set of late ranks that a server has open."""
    groups: dict[tuple[str, int, tuple[int, ...]], list[OpenRound]] = {}
    for one in rounds:
        groups.setdefault((one.name, one.number, tuple(one.ranks)), []).append(one)
    lines = []
    for (name, number, ranks), partitions in sorted(groups.items()):
        which = _ranges(sorted(one.partition for one in partitions))
        word = "partition" if len(partitions) == 1 else "partitions"
        nbytes = size(sum(one.nbytes for one in partitions))
        lines.append(f"{_where(name, number)}: {word} {which}, {nbytes}, waiting for {_ranks(ranks)}")
    return lines


def user_name(name: str) -> str:
    """The name that the user gave a tensor, where he gave one; else the name on the wire."""
    for kind in _OWN_KINDS:
        if name.startswith(kind) and not name.startswith(f"{kind}noname."):
            return name[len(kind) :]
    return name


def size(nbytes: int) -> str:
    """A number of bytes for readers: ``4.0 MiB``."""
    value, unit = float(nbytes), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.1f} {_UNITS[unit]}" if unit else f"{nbytes} B"


def count(number: int, noun: str) -> str:
    """``1 server``, ``2 servers``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """A time with its unit: ``12.3 ms``."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}" if seconds < 1000 * scale else f"{seconds:.0f} s"
    return f"{seconds / 1e-6:.3g} us"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A table for people. First column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        yield "  ".join([row[0].ljust(widths[0]), *cells[1:]]).rstrip()


def _where(name: str, number: int) -> str:
    return f"step {number}, {user_name(name)}"


def _waiting(late: Missing | None) -> str:
    if late is None:
        return "who is late is not known"
    if not late:
        return "waiting for the result (all ranks have contributed)"
    if len(late) == 1:
        return f"waiting for rank {late[0][0]}, {_heard(late[0][1])}"
    texts = [f"{rank} ({_heard(heard_s)})" for rank, heard_s in late]
    return f"waiting for ranks {_joined(texts)}"


def _heard(heard_s: float) -> str:
    return f"last heard {heard_s:.1f} s ago" if math.isfinite(heard_s) else "not heard yet"


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {_joined([str(rank) for rank in ranks])}" if ranks else "nobody"


def _ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers, runs of them shortened: ``0-3, 7``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    texts = [f"{first}-{last}" if last > first else str(first) for first, last in runs]
    return ", ".join(texts[:_SHOWN]) + (", ..." if len(texts) > _SHOWN else "")


def _joined(texts: Sequence[str]) -> str:
    """``1, 2 and 3``; the first of them where there are many."""
    if len(texts) > _SHOWN:
        return f"{', '.join(texts[:_SHOWN])} and {len(texts) - _SHOWN} more"
    return f"{', '.join(texts[:-1])} and {texts[-1]}"
