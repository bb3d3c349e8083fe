"""What is left of a step's barrier: each parameter waits for its own gradient, when somebody reads it.

``cross`` ends a round without waiting. Every parameter of the round is *unread* from then on. Whoever reads
one waits for its gradient; then all updates whose gradients have arrived by now are done in one batch: an
optimizer's step costs nearly the same for eight parameters as for one.

Updates are done by the thread that reads. A batch is looked for among the parameters that come after the one
that was read, in the order in which they were sent, up to the first that has not arrived. Whoever has to wait
does other updates meanwhile, a few at a time: they would come later, when nothing is waited for.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence

import torch
from torch.nn import Module
from torch.optim import Optimizer

from byteps.errors import BytePSError
from byteps.torch.dependency_proxy.reads import watch
from byteps.torch.dependency_proxy.unread import Unread, notice
from byteps.torch.gradients.reducer import GradientReducer
from byteps.torch.gradients.slots import Slot
from byteps.torch.partial_steps.views import Group, culprit, snapshot, update

_MEANWHILE, _MEANWHILE_ELEMENTS = 16, 2**20
"""Updates of so many parameters, and about so many elements, are done at a time by who waits for another: in
some tenths of a millisecond."""

_log = logging.getLogger("byteps.torch")


class Barrier:
    """The parameters of one optimizer between a step and the moment when they are read.

    Args:
        model: What reads them.
        optimizer: Updates them.
        reducer: Sends their gradients.
    """

    def __init__(self, model: Module, optimizer: Optimizer, reducer: GradientReducer) -> None:
        self._model = model
        self._optimizer = optimizer
        self._reducer = reducer
        self._lock = threading.RLock()
        self._all: dict[Slot, Unread] = {}
        self._round: Sequence[Unread] = ()
        self._first_uses: list[str] | None = []
        self._compiled = self._outdated = False
        # Compiled code may cause reads, too; what happens then is not to be compiled.
        self._notice: Callable[[Unread], None] = torch.compiler.disable(notice)
        for _ in model.parameters():
            pass  # who has watched them before must come to an end
        self.adopt()
        reducer.session.unfinished.add(self)

    def adopt(self) -> None:
        """Take in what the reducer and the model have got since the last time."""
        places = watch(self._model, self)
        self._outdated = False
        for slot in self._reducer.slots:
            unread = self._all.get(slot)
            if unread is None:
                unread = self._all[slot] = Unread(self, slot, self._notice)
            unread.settle(places.get(id(slot.parameter), ()))
            if self._first_uses is not None:
                unread.watch()

    def cross(self) -> None:
        """Close the round: send what has not been sent, and let updates wait for their gradients.

        Raises:
            RuntimeError: A gradient was changed while it was sent, there is none since the last step, or an
                update of the last step has failed.
            ValueError: A gradient is sparse.
            BytePSError: The job failed.
        """
        self.finish()
        self._check_new()
        if self._outdated:
            self.adopt()
        self._learn_order()
        self._reducer.send_rest(may_drop=False)
        groups = snapshot(self._optimizer)
        flights = self._reducer.hand_over()
        with self._lock:
            self._round = [self._all[slot] for slot, _ in flights]
            for position, (slot, flight) in enumerate(flights):
                self._round[position].begin(flight, groups[id(slot.parameter)], position)
        self._update_rest(groups)
        for unread in self._round:
            if not unread.can_wait(self._compiled):
                self.wait_for(unread)
                unread.watch()  # perhaps it is used by other code than what was compiled

    def finish(self) -> None:
        """Wait for all updates.

        Raises:
            RuntimeError: One cannot be done.
            BytePSError: The job failed.
        """
        with self._lock:
            if waiting := [unread for unread in self._round if unread.flight is not None]:
                self._apply(waiting)
            self._round = ()

    def code_is_compiled(self) -> None:
        """See ``Listener``."""
        self.finish()
        self._compiled = self._outdated = True
        for unread in self._all.values():
            unread.eager = False  # until it is used again

    def finish_rounds(self) -> None:
        """Called before the session ends."""
        try:
            self.finish()
        except (BytePSError, RuntimeError) as error:
            _log.error("the last step's updates are incomplete: %s", error)

    def zero_later(self, set_to_none: bool = True) -> set[int]:
        """Have gradients that are on their way dropped once they are used. Returns their parameters' ids."""
        with self._lock:
            waiting = [unread for unread in self._round if unread.flight is not None]
            for unread in waiting:
                unread.zeroing = set_to_none or bool(unread.zeroing)
        return {id(unread.slot.parameter) for unread in waiting}

    def first_use(self, unread: Unread) -> None:
        """See ``Owner``. In the first round this shows the order of the forward pass."""
        with self._lock:
            unread.rest()
            if self._first_uses is not None:
                self._first_uses.append(unread.slot.name)

    def wait_for(self, unread: Unread) -> None:
        """See ``Owner``. What else has arrived is updated too. Raises as ``finish``."""
        with self._lock:
            if unread.flight is None:  # another thread was faster
                return
            while not unread.flight.pending.transfer.poll() and (some := self._some_arrived(unread.position)):
                self._apply(some)
            unread.flight.pending.transfer.wait()
            self._apply([unread, *self._arrived_after(unread.position)])

    def _update_rest(self, groups: dict[int, Group]) -> None:
        """Update what has a gradient that is not reduced, as frozen parameters may."""
        rest = [slot for slot in self._reducer.slots if not slot.unread and slot.parameter.grad is not None]
        if rest:
            self._step(rest, [groups[id(slot.parameter)] for slot in rest])
            for slot in rest:
                slot.mark_used()

    def _arrived_after(self, position: int) -> Iterator[Unread]:
        """What was sent after one parameter and is here, up to the first that is not."""
        for number in range(position + 1, len(self._round)):
            unread = self._round[number]
            if unread.flight is not None:
                if not unread.flight.pending.transfer.poll():
                    return
                yield unread

    def _some_arrived(self, position: int) -> list[Unread]:
        """Some of what was sent after one parameter and is here, whatever is missing between."""
        some: list[Unread] = []
        elements = 0
        for unread in self._round[position + 1 :]:
            if len(some) == _MEANWHILE or elements >= _MEANWHILE_ELEMENTS:
                break
            if unread.flight is not None and unread.flight.pending.transfer.poll():
                some.append(unread)
                elements += unread.slot.parameter.numel()
        return some

    def _apply(self, batch: Sequence[Unread]) -> None:
        """Wait for the gradients of some parameters and do the updates."""
        sound = [unread for unread in batch if self._receive(unread)]
        spoiled = [unread for unread in batch if unread not in sound] if len(sound) < len(batch) else []
        for unread in spoiled:
            unread.end(unread.slot.parameter.grad)
        self._update(sound)
        if spoiled:
            raise RuntimeError(
                f"the gradient of {spoiled[0].slot.name!r} was changed after step(), while it was being "
                "sent, so the parameter is not updated. Call optimizer.flush() before you change gradients; "
                "optimizer.zero_grad() drops them when they are used"
            )

    def _receive(self, unread: Unread) -> bool:
        """Wait for a gradient. Returns whether nobody wrote to it."""
        flight = unread.flight
        assert flight is not None
        untouched = flight.is_of(flight.gradient)
        self._reducer.receive(flight)
        flight.version = flight.gradient._version if untouched else -1
        return untouched

    def _update(self, batch: Sequence[Unread]) -> None:
        found = [unread.slot.parameter.grad for unread in batch]
        trace = self._reducer.session.trace
        begin_ns = trace.now_ns()
        try:
            for unread, gradient in zip(batch, found, strict=True):
                if unread.flight is None or gradient is not unread.flight.gradient:
                    unread.give_gradient()
            self._step([unread.slot for unread in batch], [unread.group for unread in batch])
            trace.span("updated", batch[0].slot.name if batch else "", begin_ns)
        finally:
            for unread, gradient in zip(batch, found, strict=True):
                unread.end(gradient)

    def _step(self, slots: Sequence[Slot], groups: Sequence[Group]) -> None:
        wanted = [(slot.parameter, group) for slot, group in zip(slots, groups, strict=True)]
        try:
            update(self._optimizer, wanted)
        except Exception as error:  # whatever an optimizer may raise
            name = slots[culprit(self._optimizer, wanted)].name
            raise RuntimeError(f"the update of parameter {name!r} failed: {error}") from error

    def _check_new(self) -> None:
        """Refuse a second step on the same gradients."""
        if self._reducer.pending:
            return
        for slot in self._reducer.slots:
            if slot.is_used():
                raise RuntimeError(
                    f"step() was called again without a backward pass since the last step(): the gradient of "
                    f"{slot.name!r} has been used already. Call step() once after each backward pass, or "
                    "zero_grad() if this rank has nothing to add"
                )

    def _learn_order(self) -> None:
        """At the end of the first round: send in the order in which parameters were first used."""
        order, self._first_uses = self._first_uses, None
        if order is None:
            return
        for unread in self._all.values():
            unread.rest()
        if order:
            named = set(order)
            others = [slot.name for slot in self._reducer.slots if slot.name not in named]
            self._reducer.set_forward_order([*order, *others])
