"""What to measure: sizes and element types as a user writes them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from byteps.dtypes import DType
from byteps.errors import ConfigError

_UNITS = {"": 0, "K": 10, "M": 20, "G": 30}
_SIZE = re.compile(r"(\d+)([KMG]?)(?:i?B)?", re.IGNORECASE)
_STEP = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PushPullPlan:
    """Which rounds to time.

    Attributes:
        sizes: of the tensors, in bytes, ascending.
        dtypes: element types.
        iterations: rounds that count, per size and dtype.
        warmup: rounds before them that do not.
        link_gbit: rate of a worker's link in Gbit/s, each way; 0: not known.
    """

    sizes: Sequence[int]
    dtypes: Sequence[DType]
    iterations: int
    warmup: int
    link_gbit: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainPlan:
    """Which training to time.

    Attributes:
        model: its name.
        batch_size: samples per step and worker; 0: what suits the model.
        sequence_length: tokens per sample of a language model.
        steps: training steps of one block.
        blocks: blocks with communication, and as many without.
        warmup: steps of either kind before the first block.
        device: "cpu", "cuda" or another name of torch's; "": a GPU if there is one.
    """

    model: str
    batch_size: int
    sequence_length: int
    steps: int
    blocks: int
    warmup: int
    device: str


def parse_sizes(words: Sequence[str]) -> list[int]:
    """Sizes in bytes, ascending.

    Args:
        words: ``4K``, ``1M,4M``, or ranges: ``4K:256M`` goes up by factors of 4, ``1K:1M:2`` by factors of 2.

    Raises:
        ConfigError: a word is not a size, or a range goes nowhere.
    """
    sizes: set[int] = set()
    for word in (part for group in words for part in group.split(",")):
        first, *rest = word.split(":")
        if not rest:
            sizes.add(_size(first, word))
            continue
        step = int(rest[1]) if len(rest) == 2 and rest[1].isdecimal() else _STEP if len(rest) == 1 else 0
        size, last = _size(first, word), _size(rest[0], word)
        if step < 2 or last < size:
            raise ConfigError(f"sizes {word!r}: a range is FIRST:LAST or FIRST:LAST:FACTOR, like 4K:256M:4")
        while size <= last:
            sizes.add(size)
            size *= step
    return sorted(sizes)


def _size(text: str, word: str) -> int:
    match = _SIZE.fullmatch(text)
    if match is None or int(match[1]) == 0:
        raise ConfigError(f"sizes {word!r}: {text!r} is not a size; write 65536, 64K, 4M or 1G")
    return int(match[1]) << _UNITS[match[2].upper()]


def parse_dtypes(words: Sequence[str]) -> list[DType]:
    """Element types by their names, in the order given.

    Raises:
        ConfigError: a name is not one of those that can be summed.
    """
    known = {dtype.name.lower(): dtype for dtype in DType if dtype is not DType.BOOL}
    names = [name.lower() for group in words for name in group.split(",")]
    for name in names:
        if name not in known:
            raise ConfigError(f"dtype {name!r} cannot be measured; choose from {', '.join(known)}")
    return [known[name] for name in dict.fromkeys(names)]
