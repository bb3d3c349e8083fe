"""Messages about settings that change while training goes on. How they follow each other: docs/tuning.md."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from byteps.wire.fields import Count

SearchName: TypeAlias = Literal["bayes", "random", "grid"]


class Knobs(msgspec.Struct, frozen=True, array_like=True):
    """Sizes in bytes that can change while training goes on; 0: automatic, or as before.

    Attributes:
        partition_bytes: Of a partition, or of a collective.
        credit_bytes: What a worker may have in flight.
        chunk_bytes: Of a frame; servers only.
        fusion_bytes: Up to which smaller tensors share a collective; all-reduce only.
    """

    partition_bytes: Count = 0
    credit_bytes: Count = 0
    chunk_bytes: Count = 0
    fusion_bytes: Count = 0


class TuningSettings(msgspec.Struct, frozen=True, array_like=True):
    """What a job's workers want of tuning; all the same.

    Attributes:
        start: What the job runs with at first.
        search: What proposes settings.
        trials: How many at most.
        window: Steps that each is measured for.
    """

    start: Knobs
    search: SearchName = "bayes"
    trials: Annotated[int, Meta(ge=1, lt=2**20)] = 30
    window: Annotated[int, Meta(ge=2, lt=2**20)] = 6


class Move(msgspec.Struct, frozen=True, array_like=True):
    """A tensor that is cut otherwise from some round on; with nothing to move, only the round is agreed on.

    Attributes:
        old: The tensor's number until then.
        new: From then on; the same if its partitions stay.
        parts: (server, lane, bytes) of the new partitions, in order.
        round: The first round, counted as the old number's, that uses the new one; 0: rank 0 is to say.
    """

    old: Count
    new: Count
    parts: list[tuple[Count, Count, Count]] = []
    round: Count = 0


class Retune(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Coordinator -> rank 0, and when it has ``Agreed`` -> the others: change settings at these rounds.

    Attributes:
        number: Of the change.
        knobs: The settings.
        moves: Tensors that take part.
        limit_s: Two steps in a row that take longer end the measurement.
        steps: How many to measure.
    """

    number: Count
    knobs: Knobs
    moves: list[Move]
    limit_s: float
    steps: Count


class Agreed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Rank 0 -> coordinator: the rounds of ``Retune.moves``; it begins none of them before ``Proceed``."""

    number: Count
    rounds: list[Count]


class Taken(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Other ranks -> coordinator: the change will be made at its rounds."""

    number: Count


class Proceed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Coordinator -> rank 0: every rank has ``Taken`` the change."""

    number: Count


class Measured(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Rank 0 -> coordinator: how long steps took with a change.

    Attributes:
        number: Of the change; 0: with what the job began with.
        seconds: Of each step.
        cut: Whether they were longer than the limit.
        steady: Numbers of the tensors that are used in every step.
        rate: Bytes per second of this worker's link, as last measured; 0: not known.
        overhead_s: What a partition, or a collective, costs besides its bytes.
    """

    number: Count
    seconds: list[float]
    cut: bool
    steady: list[Count]
    rate: float
    overhead_s: float
