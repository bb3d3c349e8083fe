"""Learning rates that depend on the epoch and the number of ranks. Horovod's rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class RateSchedule:
    """A learning rate from some epoch to another.

    Attributes:
        initial: What the multiplier is applied to.
        multiplier: Of the epoch, which is a fraction unless ``staircase``.
        start_epoch: The first epoch it applies to.
        end_epoch: The first epoch it does not apply to any more; None if it always does.
        staircase: Whether the rate changes once per epoch, or else with every batch.
    """

    initial: float
    multiplier: Callable[[float], float]
    start_epoch: int = 0
    end_epoch: int | None = None
    staircase: bool = True

    def rate(self, epoch: int, batch: int, steps_per_epoch: int | None) -> float | None:
        """What the rate becomes before a batch; None if it stays.

        Raises:
            ValueError: The rate changes with every batch and nobody knows how many an epoch has.
        """
        if epoch < self.start_epoch or (self.end_epoch is not None and epoch >= self.end_epoch):
            return None
        if self.staircase:
            return None if batch else self.initial * self.multiplier(epoch)
        if not steps_per_epoch:
            raise ValueError("the number of batches of an epoch is not known: pass steps_per_epoch=")
        return self.initial * self.multiplier(epoch + batch / steps_per_epoch)


def decaying(multiplier: float | Callable[[float], float]) -> Callable[[float], float]:
    """A multiplier as a function of the epoch; a number is applied once per epoch."""
    if callable(multiplier):
        return multiplier
    factor = float(multiplier)
    return lambda epoch: float(factor**epoch)


def warm_up(size: int, epochs: float) -> Callable[[float], float]:
    """From 1/size at the start to 1 after some epochs, linearly (Goyal et al., arXiv:1706.02677)."""
    return lambda epoch: (epoch * (size - 1) / epochs + 1) / size
