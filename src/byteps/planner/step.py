"""One training step on a virtual clock: what is ready when, what is done when, how long the step takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from byteps.planner.engine import Clock, Sender
from byteps.planner.profile import Layer


@dataclass(frozen=True, slots=True)
class Unit:
    """Bytes that become ready together.

    Args:
        pieces: Bytes of each partition, and the number of the peer that it goes to.
        layers: Whose gradients they are.
        priority: Larger is more urgent.
    """

    pieces: Sequence[tuple[int, int]]
    layers: Sequence[int]
    priority: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A partition. Its number is its place in ``Step.pieces``."""

    nbytes: int
    peer: int
    priority: int
    layers: Sequence[int]


@dataclass(frozen=True, slots=True)
class Span:
    """A time at which something was done.

    Args:
        lane: What: ``backward``, ``push``, ``result`` or ``forward``.
        layer: For which layer.
        begin_s, end_s: From when to when.
    """

    lane: str
    layer: int
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step took.

    Args:
        step_s: From the begin of one backward pass to that of the next.
        spans: What was done when, if that was asked for.
    """

    step_s: float
    spans: Sequence[Span] = ()


class Step:
    """A step of one worker, which stands for all: gradients become ready, partitions leave and come back.

    The links are idle when a backward pass begins, since the last layer's forward pass needs the result that
    was ready first. So one step tells how long each takes.

    Args:
        layers: The model.
        units: What is sent.
        crosses: The next forward pass begins before all results are there, as in ``CrossBarrier``.
        record: Note what was done when.
    """

    def __init__(
        self, layers: Sequence[Layer], units: Sequence[Unit], *, crosses: bool = True, record: bool = False
    ) -> None:
        self.clock = Clock()
        self.pieces: list[Piece] = []
        self._layers = layers
        self._units = units
        self._crosses = crosses
        self._record = record
        self._spans: list[Span] = []
        self._latest: dict[str, int] = {}  # where in them each lane's last one is
        self._left = [0] * len(layers)
        self._done_s = [0.0] * len(layers)

    def run(self, sender: Sender) -> Outcome:
        """Take the step.

        Args:
            sender: The worker's. Each partition that it has sent is to end in ``done``.
        """
        ready = self._ready()
        # As a backward pass comes to them.
        for unit in sorted(self._units, key=lambda unit: -min(unit.layers)):
            first = len(self.pieces)
            self.pieces += [Piece(nbytes, peer, unit.priority, unit.layers) for nbytes, peer in unit.pieces]
            for layer in unit.layers:
                self._left[layer] += len(unit.pieces)
            numbers = range(first, len(self.pieces))
            self.clock.at(ready[min(unit.layers)], partial(self._submit, sender, numbers))
        self.clock.run()
        return self._forward(ready[0])

    def note(self, lane: str, number: int, begin_s: float, end_s: float) -> None:
        """A partition was sent from one moment to another."""
        if not self._record or end_s <= begin_s:
            return
        layer = min(self.pieces[number].layers)
        at = self._latest.get(lane)
        if at is not None and self._spans[at].layer == layer and begin_s <= self._spans[at].end_s:
            joined = max(end_s, self._spans[at].end_s)
            self._spans[at] = Span(lane, layer, self._spans[at].begin_s, joined)
        else:
            self._latest[lane] = len(self._spans)
            self._spans.append(Span(lane, layer, begin_s, end_s))

    def done(self, number: int) -> None:
        """A partition's result is there."""
        for layer in self.pieces[number].layers:
            self._left[layer] -= 1
            self._done_s[layer] = self.clock.now_s

    def _submit(self, sender: Sender, numbers: Iterable[int]) -> None:
        for number in numbers:
            piece = self.pieces[number]
            sender.submit(number, piece.priority, piece.peer, piece.nbytes, piece.nbytes)
        sender.look()

    def _ready(self) -> list[float]:
        """When each layer's gradients are."""
        moments: list[float] = []
        moment_s = 0.0
        for number in range(len(self._layers) - 1, -1, -1):
            begin_s, moment_s = moment_s, moment_s + self._layers[number].backward_s
            moments.append(moment_s)
            if self._record:
                self._spans.append(Span("backward", number, begin_s, moment_s))
        return moments[::-1]

    def _forward(self, moment_s: float) -> Outcome:
        """The forward pass after this step's backward pass, which ends at a moment."""
        if any(self._left):
            raise AssertionError(f"partitions that never came back: {sum(self._left)}")
        if not self._crosses:
            moment_s = max(moment_s, *self._done_s)
        for number, layer in enumerate(self._layers):
            begin_s = max(moment_s, self._done_s[number])
            moment_s = begin_s + layer.forward_s
            if self._record:
                self._spans.append(Span("forward", number, begin_s, moment_s))
        return Outcome(moment_s, self._spans)
