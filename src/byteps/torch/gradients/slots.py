"""What is known about one parameter's gradient between backward pass and step."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import torch
from torch import Tensor

from byteps.dtypes import ReduceOp
from byteps.session import Session
from byteps.torch.compression import Compressor
from byteps.torch.tensors import ELEMENT_TYPES
from byteps.torch.transfers import Pending
from byteps.wire import TensorSpec

Reference = Callable[[], "Tensor | None"]
"""A weak one."""


class Exchange(msgspec.Struct, frozen=True):
    """How gradients are sent.

    Attributes:
        session: Where to.
        prefix: Begins their names on the wire.
        op: ``SUM`` or ``AVERAGE``.
        scales: Factors for each contribution and for the result.
        compression: Applied before sending and after receiving.
        sparse_as_dense: Whether sparse gradients are made dense, or else refused.
        advice: What to do when a gradient is computed again after it was sent.
        members: The ranks that take part; all if empty.
    """

    session: Session
    prefix: str
    op: ReduceOp
    scales: tuple[float, float]
    compression: type[Compressor]
    sparse_as_dense: bool
    advice: str
    members: tuple[int, ...] = ()

    def spec(self, name: str, dtype: torch.dtype, shape: Sequence[int]) -> TensorSpec:
        """The declaration of a gradient as it is sent, in a dtype that servers can reduce."""
        full_name = f"{self.prefix}.{name}"
        return TensorSpec(
            full_name, ELEMENT_TYPES[dtype], tuple(shape), self.op, *self.scales, members=self.members
        )


class Flight(msgspec.Struct):
    """A gradient that was sent.

    Attributes:
        gradient: The gradient, which is to hold the result.
        version: Its version when it was sent: whoever writes to it raises this.
        wire: What was sent in its place; the gradient itself without compression.
        context: What decompression needs.
        pending: The round.
    """

    gradient: Tensor
    version: int
    wire: Tensor
    context: Any
    pending: Pending

    def is_of(self, gradient: Tensor | None) -> bool:
        """Whether this gradient was sent, and nobody has written to it since."""
        return gradient is self.gradient and gradient._version == self.version


class Slot(msgspec.Struct, eq=False, weakref=True):
    """The state of one parameter.

    Attributes:
        name: The user's name of the parameter.
        parameter: The parameter.
        priority: Higher numbers are sent first.
        hooked: Whether its hook is registered.
        taken: Whether another reducer has taken its place.
        fired: Firings in this round on gradients that no step has used yet.
        count: Firings since the gradient was last made anew.
        order: Number of the last firing among those of all parameters.
        expected: After how many firings to send; None until a round has shown it.
        eager: Whether to send before the round is closed: not while rounds drop gradients.
        gradient: The gradient that fired last in this round.
        used: The gradient that the last step used.
        used_version: Its version then.
        flight: The gradient in flight.
        unread: Whether the last step's update waits until the parameter is read (``crossing``).
        spec: How its gradient was declared when it was sent last.
    """

    name: str
    parameter: Tensor
    priority: int = 0
    hooked: bool = False
    taken: bool = False
    fired: int = 0
    count: int = 0
    order: int = 0
    expected: int | None = None
    eager: bool = True
    gradient: Reference | None = None
    used: Reference | None = None
    used_version: int = 0
    flight: Flight | None = None
    unread: bool = False
    spec: TensorSpec | None = None

    def mark_used(self) -> None:
        """A step has used the gradient: what another backward pass adds to it is not for the next step."""
        gradient = self.parameter.grad
        if gradient is not None:
            self.used, self.used_version = weakref.ref(gradient), gradient._version

    def is_used(self) -> bool:
        """Whether the parameter's gradient is what a step has used already."""
        gradient = self.parameter.grad
        if gradient is None or self.used is None:
            return False
        return self.used() is gradient and gradient._version == self.used_version

    def adds_to_used(self, gradient: Tensor) -> bool:
        """Whether a firing only added to what the last step used, as another model's backward pass does.

        Args:
            gradient: What the last step used.
        """
        if self.fired or gradient._version != self.used_version + 1:
            return False
        self.used_version = gradient._version
        return True

    def learn(self, passes: int) -> None:
        """Close the round: the next one sends after as many firings as this one had."""
        if self.expected is None and self.count and self.count % passes == 0:
            self.expected = self.count
        self.eager = self.fired == self.count
        self.fired = self.count = 0
        self.gradient = None
