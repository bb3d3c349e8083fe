"""Gradients on their way while the backward pass still runs; for the optimizer and DistributedDataParallel.

Every parameter has a slot. Its hook fires whenever autograd has accumulated into ``.grad``. The first round
only counts how often that happens (shared weights under activation checkpointing fire more than once) and
sends when the round is closed; from then on a gradient is sent, in place, as soon as it has fired as often
as before.

Three things can happen to a gradient between its firing and the end of the round, and none may go unnoticed:

- it is computed again after it was sent: an error, the sum would lack the later part;
- it is dropped (``zero_grad``), as in GAN loops, where one model's backward pass reaches the other's
  parameters: the round that was begun is waited for and forgotten, counting starts again, and the next
  round sends late;
- it is written by someone else while it is in flight: an error.

Every rank takes part in every parameter's round, with nothing to add where it has no gradient. A parameter
that all ranks used in the first round and that lacks its gradient on some rank later gets zeros there, as
in Horovod; of the others, those that no rank uses in a round keep their gradient None (``adapters.usage``).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from byteps.adapters.usage import Usage
from byteps.torch.compression import BUILT_IN, Compression
from byteps.torch.gradients.compiled import CompileWatch
from byteps.torch.gradients.slots import Exchange, Flight, Slot
from byteps.torch.sending import Stagers, start
from byteps.torch.tensors import ELEMENT_TYPES, element_type
from byteps.wire import TensorSpec

if TYPE_CHECKING:
    from byteps.session import Session


class GradientReducer:
    """Reduces the gradients of some parameters over all ranks, round by round.

    Args:
        exchange: How to send.
        parameters: (name, parameter) in forward order, as far as known.
        passes: Backward passes in one round.

    Attributes:
        enabled: Whether hooks do anything.
        pending: Whether gradients were computed since the last round was closed.
        started: Called at each firing, before anything else, if there is one.
        watch: Sees when gradients come.

    Raises:
        ValueError: A parameter is of a dtype that cannot be reduced.
        DeclarationError: Ranks differ in a parameter's shape or dtype.
    """

    def __init__(self, exchange: Exchange, parameters: Iterable[tuple[str, Tensor]], passes: int = 1) -> None:
        self.enabled = True
        self.pending = False
        self.started: Callable[[], None] | None = None
        self._exchange = exchange
        self._passes = passes
        self._slots: list[Slot] = []
        self._stagers = Stagers()
        self._usage: Usage[Slot] = Usage(exchange.session, exchange.prefix, exchange.members)
        self.watch = CompileWatch()
        self._firings = 0
        self._ordered = False
        self.add(parameters)

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def session(self) -> Session:
        """Where gradients are sent."""
        return self._exchange.session

    @property
    def slots(self) -> Sequence[Slot]:
        """One for each parameter, in the order in which they were added."""
        return self._slots

    def add(self, parameters: Iterable[tuple[str, Tensor]]) -> None:
        """Take in parameters and declare their gradients in one message. Raises as the constructor does."""
        new = [Slot(name, parameter) for name, parameter in parameters]
        for slot in new:
            element_type(slot.parameter, f"parameter {slot.name!r}")
        self._slots += new
        self._usage.forget()
        self.set_forward_order([slot.name for slot in self._slots])
        self._ordered = False
        self._attach()
        if self._exchange.compression in BUILT_IN:
            self._exchange.session.declare([self._declaration(s) for s in new if s.parameter.requires_grad])

    def holds(self, parameter: Tensor) -> bool:
        """Whether the parameter was added."""
        return any(slot.parameter is parameter for slot in self._slots)

    def set_forward_order(self, names: Iterable[str]) -> None:
        """Send what is ready in this order. Parameters that are not named come last."""
        positions = {name: position for position, name in enumerate(names)}
        for slot in self._slots:
            slot.priority = -positions.get(slot.name, len(self._slots))
        self._ordered = True

    def set_passes(self, passes: int) -> None:
        """Expect another number of backward passes; the next round learns anew when to send."""
        self._passes = passes
        for slot in self._slots:
            slot.expected = None

    def mark_used(self) -> None:
        """A step has used the gradients."""
        for slot in self._slots:
            slot.mark_used()

    def discard(self) -> None:
        """Wait for what is in flight and forget it, because the gradients are dropped.

        Raises:
            BytePSError: The job failed.
        """
        for slot in self._slots:
            if slot.flight is not None:
                self._drop(slot)
            slot.count = 0
        self.pending = False

    def close_round(self) -> None:
        """Send what has not been sent, and wait until every ``.grad`` is the reduced one.

        Raises:
            RuntimeError: A gradient was changed or replaced while it was in flight, or is another reducer's.
            ValueError: A gradient is sparse.
            BytePSError: The job failed.
        """
        try:
            self.send_rest()
            for slot in self._slots:
                if slot.flight is not None:
                    self.receive(slot.flight)
        finally:
            for slot in self._slots:
                slot.flight = None
        self._learn()

    @torch.no_grad()
    def send_rest(self, may_drop: bool = True) -> None:
        """Send what has not been sent, so that this rank takes part in the round of every parameter.

        Args:
            may_drop: Whether a gradient may have been dropped after it was sent.

        Raises:
            RuntimeError, ValueError, BytePSError: As ``close_round``. A RuntimeError leaves none in flight.
        """
        self._attach()
        for slot in self._slots:
            if slot.taken or (slot.flight is not None and not slot.flight.is_of(slot.parameter.grad)):
                self._refuse(slot, may_drop)
        for slot in self._slots:
            parameter = slot.parameter
            if slot.flight is None and parameter.requires_grad and parameter.grad is not None:
                self._send(slot, parameter.grad)
        for slot in self._usage.lacking(self._slots):
            slot.parameter.grad = torch.zeros_like(slot.parameter)
            self._send(slot, slot.parameter.grad, contribute=False)

    def hand_over(self) -> list[tuple[Slot, Flight]]:
        """Close a round whose gradients have all been sent; the caller receives them, most urgent first."""
        by_urgency = sorted(self._slots, key=attrgetter("priority"), reverse=True)
        flights = [(slot, slot.flight) for slot in by_urgency if slot.flight is not None]
        for slot, _ in flights:
            slot.flight = None
        self._learn()
        return flights

    def receive(self, flight: Flight) -> None:
        """Wait until a flight's gradient is the reduced one.

        Raises:
            BytePSError: The round failed.
        """
        flight.pending.finish()
        if flight.wire is not flight.gradient:
            with torch.no_grad():
                flight.gradient.copy_(self._exchange.compression.decompress(flight.wire, flight.context))

    def _parameters(self) -> Iterator[Tensor]:
        return (slot.parameter for slot in self._slots)

    def _attach(self) -> None:
        """Hook what requires a gradient; for some parameters that may be so only since the last round."""
        for slot in self._slots:
            if not slot.hooked and slot.parameter.requires_grad:
                slot.hooked = True
                _Hook(self, slot).take_over(slot.parameter)

    def _declaration(self, slot: Slot) -> TensorSpec:
        wire, _ = self._exchange.compression.compress(torch.empty(0, dtype=slot.parameter.dtype))
        return self._exchange.spec(slot.name, wire.dtype, slot.parameter.shape)

    def _fired(self, slot: Slot) -> None:
        """Autograd has accumulated into a parameter's gradient."""
        if self.started is not None:
            self.started()
        if slot.unread:
            raise _unread(slot)
        gradient = slot.parameter.grad
        if not self.enabled or gradient is None:
            return
        self.pending = True
        if slot.flight is not None:
            if slot.flight.gradient is gradient:
                raise _computed_again(slot, self._exchange.advice)
            self._drop(slot)
        self._firings += 1
        slot.order = self._firings
        if slot.used is not None and slot.used() is gradient and slot.adds_to_used(gradient):
            return
        again = slot.gradient is not None and slot.gradient() is gradient
        slot.count = slot.count + 1 if again else 1
        slot.fired += 1
        slot.gradient = weakref.ref(gradient)
        if slot.eager and slot.count == slot.expected:
            self.watch.fired(self._parameters)
            self._send(slot, gradient)
        else:
            self.watch.begin()

    def _send(self, slot: Slot, gradient: Tensor, contribute: bool = True) -> None:
        # Hooks run without gradient mode but for create_graph=True. Entering no_grad takes long for a hook.
        if torch.is_grad_enabled():
            with torch.no_grad():
                self._send(slot, gradient, contribute)
            return
        exchange, spec = self._exchange, slot.spec
        trace = exchange.session.trace
        ready_ns = trace.now_ns() if trace.on else 0
        if gradient.layout != torch.strided and exchange.sparse_as_dense:
            gradient = slot.parameter.grad = gradient.to_dense()
        if spec is None or gradient.layout != torch.strided or gradient.dtype != slot.parameter.dtype:
            element_type(gradient, f"gradient of {slot.name!r}")
        wire, context = gradient, None
        if exchange.compression is not Compression.none:
            wire, context = exchange.compression.compress(gradient)
        if spec is None or spec.shape != wire.shape or spec.dtype != ELEMENT_TYPES[wire.dtype]:
            spec = slot.spec = exchange.spec(slot.name, wire.dtype, wire.shape)
        if trace.on:
            trace.span("ready", spec.name, ready_ns)
        source = wire if contribute else None
        stager = self._stagers.of(wire) if wire.is_cuda else None
        pending = start(exchange.session, spec, source, wire, slot.priority, stager)
        slot.flight = Flight(gradient, gradient._version, wire, context, pending)

    def _drop(self, slot: Slot) -> None:
        """Let a round end whose result nobody wants; all ranks have begun it."""
        flight, slot.flight = slot.flight, None
        assert flight is not None
        flight.pending.transfer.wait()

    def _refuse(self, slot: Slot, may_drop: bool) -> None:
        """Raise if something was done to a parameter's gradient that must not be done."""
        if (fault := _fault(slot, may_drop)) is not None:
            self.discard()
            raise RuntimeError(fault)

    def _learn(self) -> None:
        if not self._ordered and self._firings:
            # Backward passes end where forward passes begin: what fired last was read first.
            by_use = sorted(self._slots, key=lambda slot: slot.order, reverse=True)
            self.set_forward_order([slot.name for slot in by_use])
        for slot in self._slots:
            slot.learn(self._passes)
        self.pending = False
        self.watch.close()


class _Hook:
    """Called by autograd. It does not keep the reducer alive: a dropped optimizer sends nothing any more."""

    def __init__(self, reducer: GradientReducer, slot: Slot) -> None:
        self._reducer = weakref.ref(reducer)
        self._slot = weakref.ref(slot)

    def __call__(self, parameter: Tensor) -> None:
        """Autograd has accumulated into the parameter's gradient."""
        reducer, slot = self._reducer(), self._slot()
        if reducer is not None and slot is not None:
            reducer._fired(slot)

    def take_over(self, parameter: Tensor) -> None:
        """Become the parameter's hook. One of another reducer ends: two would send one gradient at once."""
        hooks: dict[int, object] = getattr(parameter, "_post_accumulate_grad_hooks", None) or {}
        for number, hook in list(hooks.items()):
            if isinstance(hook, _Hook):
                del hooks[number]
                slot = hook._slot()
                if slot is not None:
                    slot.taken = True
        parameter.register_post_accumulate_grad_hook(self)


def _fault(slot: Slot, may_drop: bool) -> str | None:
    """What was done to a parameter's gradient that must not be done."""
    name, gradient, flight = slot.name, slot.parameter.grad, slot.flight
    if slot.taken:
        return (
            f"the gradient of {name!r} is reduced by a DistributedOptimizer or DistributedDataParallel that "
            "was made later for the same parameter. Use only the last one; with DistributedDataParallel, "
            "use a plain optimizer"
        )
    if flight is None or (gradient is None and may_drop):
        return None
    if gradient is None:
        return (
            f"the gradient of {name!r} was set to None while it was being sent. To drop gradients, call "
            "optimizer.zero_grad() on all ranks, and no step()"
        )
    if flight.is_of(gradient):
        return None
    what = "changed" if gradient is flight.gradient else "replaced"
    return (
        f"the gradient of {name!r} was {what} while it was being sent. Call synchronize() on the distributed "
        "optimizer before you clip, unscale or otherwise change gradients, then step within "
        "`with optimizer.skip_synchronize():`"
    )


def _computed_again(slot: Slot, advice: str) -> RuntimeError:
    return RuntimeError(
        f"the gradient of {slot.name!r} was computed again after it had been sent: it was expected "
        f"{slot.expected} time(s) in a round, as before. {advice}"
    )


def _unread(slot: Slot) -> RuntimeError:
    return RuntimeError(
        f"parameter {slot.name!r} got a gradient, but nobody has read it through its module since the last "
        "step(): the forward pass has computed with its value before that step. Read it as an attribute of "
        "its module (module.weight) each time instead of keeping a reference, or call optimizer.flush() first"
    )
