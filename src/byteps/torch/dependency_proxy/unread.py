"""One parameter whose update waits until somebody reads it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from byteps.torch.dependency_proxy.reads import CompiledCalls, Places, is_being_compiled
from byteps.torch.gradients.slots import Flight, Slot
from byteps.torch.partial_steps.views import Group

_NEVER: Group = {}


class Owner(Protocol):
    """Told about reads."""

    def first_use(self, unread: Unread) -> None:
        """Nothing waits; the parameter is used for the first time since it is watched."""
        ...

    def wait_for(self, unread: Unread) -> None:
        """It is to be updated before this returns."""
        ...


class Unread:
    """One parameter, watched in all its places while its update waits, or until its first use is seen.

    Attributes:
        slot: The parameter.
        flight: Its gradient; None if nothing waits.
        group: The hyper-parameters of the step.
        position: Among the parameters of the round, in the order in which they were sent.
        zeroing: How ``zero_grad`` is to be done after the update, its ``set_to_none``; None for not at all.
        barrier: Whom to tell. Only what waits keeps it alive.
        eager: Whether code that is not compiled has been seen to use it.
    """

    __slots__ = (
        "_kept",
        "_notice",
        "_places",
        "barrier",
        "eager",
        "flight",
        "group",
        "position",
        "slot",
        "zeroing",
    )

    def __init__(self, barrier: Owner, slot: Slot, notice: Callable[[Unread], None]) -> None:
        self.slot = slot
        self.flight: Flight | None = None
        self.group = _NEVER
        self.position = 0
        self.zeroing: bool | None = None
        self.barrier = weakref.ref(barrier)
        self.eager = False
        self._kept: Owner | None = None
        self._notice = notice
        self._places: Places = ()

    def before_use(self) -> None:
        """See ``Watcher``."""
        self.eager = self.eager or not is_being_compiled()
        self._notice(self)

    def before_listing(self) -> None:
        """See ``Watcher``."""
        if self.flight is not None:
            self._notice(self)

    def settle(self, places: Places) -> None:
        """Where it can be read; there may be more places than before."""
        self._places = places

    def can_wait(self, compiled: bool) -> bool:
        """Whether there is a moment before each read. ``compiled``: whether the model has compiled code."""
        if not compiled or self.eager:
            return bool(self._places)
        return any(isinstance(place, CompiledCalls) for place, _ in self._places)

    def watch(self) -> None:
        """Be told of reads from now on."""
        for place, name in self._places:
            place.watched[name] = self

    def rest(self) -> None:
        """Be told no longer."""
        for place, name in self._places:
            if place.watched.get(name) is self:
                del place.watched[name]

    def begin(self, flight: Flight, group: Group, position: int) -> None:
        """Wait for a gradient."""
        self.flight, self.group, self.position, self.zeroing = flight, group, position, None
        self._kept = self.barrier()
        self.slot.unread = True
        self.watch()

    def give_gradient(self) -> None:
        """Make the reduced gradient the parameter's, whatever has been put there."""
        assert self.flight is not None
        self.slot.parameter.grad = self.flight.gradient

    def end(self, gradient: Tensor | None) -> None:
        """The update is done. ``gradient``: what the parameter had before; it gets that back."""
        flight, self.flight = self.flight, None
        assert flight is not None
        self._kept = None
        self.slot.unread = False
        self.rest()
        parameter = self.slot.parameter
        if gradient is flight.gradient:
            self.slot.mark_used()
        if self.zeroing is None:
            if gradient is not parameter.grad:
                parameter.grad = gradient
        elif self.zeroing:
            parameter.grad = None
        elif parameter.grad is not None:
            _zero(parameter.grad)


def notice(unread: Unread) -> None:
    """A parameter is about to be read."""
    barrier = unread.barrier()
    if barrier is None:
        unread.rest()
    elif unread.flight is None:
        barrier.first_use(unread)
    else:
        barrier.wait_for(unread)


def _zero(gradient: Tensor) -> None:
    """What ``zero_grad(set_to_none=False)`` does to one gradient."""
    if gradient.grad_fn is not None:
        gradient.detach_()
    else:
        gradient.requires_grad_(False)
    gradient.zero_()
