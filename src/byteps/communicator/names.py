"""Which names stand for which tensors: declared in one message, used, withdrawn when ranks disagree."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Concatenate, Generic, ParamSpec, Protocol, TypeVar

import msgspec

from byteps.communicator.changes import Changes
from byteps.communicator.interface import OK, Transfer
from byteps.control import ControlClient
from byteps.errors import DeclarationError
from byteps.wire import (
    AskMissing,
    Declare,
    Declared,
    Finished,
    Missing,
    Placement,
    Refusal,
    Refuse,
    Retract,
    TensorSpec,
)

_FINISHED_BATCH = 64

TransferT = TypeVar("TransferT", bound=Transfer)
How = ParamSpec("How")


class Plane(Protocol):
    """Carries out the rounds of tensors that have a number. No call may wait for another rank."""

    def install(self, spec: TensorSpec, placement: Placement) -> None:
        """A tensor can be used from now on."""

    def forget(self, tensor: int, /) -> None:
        """This rank will not use the tensor any more."""

    def retract(self, tensor: int, /) -> None:
        """The tensor's round in flight, if there is one, ends with ``RETRACTED``."""


class _Tensor(msgspec.Struct):
    spec: TensorSpec
    id: int
    generation: int
    last: Transfer | None = None
    spared: bool = False  # withdrawn, but the last round has a result

    @property
    def over(self) -> int:
        """The last round whose result is here."""
        if self.last is None:
            return 0
        return self.last.round if self.last.status == OK else self.last.round - 1


class Names(Generic[TransferT]):
    """The tensors that this rank has declared, by name.

    Args:
        control: This worker's connection to the coordinator.
        plane: Is told which tensors there are.
        rank: Of this worker, for messages.
        changes: Of settings while training goes on; None if there are none.
    """

    def __init__(
        self, control: ControlClient, plane: Plane, rank: int, changes: Changes | None = None
    ) -> None:
        self._control = control
        self._plane = plane
        self._rank = rank
        self._changes = changes
        self._lock = threading.Lock()
        self._tensors: dict[str, _Tensor] = {}
        self._declared: dict[str, int] = {}  # the next generation of each name
        self._finished: list[int] = []
        # Held only for a moment, unlike the other: a retraction must not wait for a declaration in progress.
        self._gate = threading.Lock()
        self._withdrawn: dict[int, str] = {}  # why, by number, until the next use of the name
        self._reasons: dict[str, str] = {}

    def declare(self, specs: Sequence[TensorSpec]) -> None:
        """See ``Communicator.declare``."""
        with self._lock:
            refused: dict[str, str] = {}
            new = [spec for spec in specs if not self._is_usable(spec, refused)]
            if new:
                self._declare(new, refused)
            if refused:
                raise DeclarationError("; ".join(refused.values()), refused)

    def begin(
        self,
        spec: TensorSpec,
        begin: Callable[Concatenate[int, How], TransferT],
        *how: How.args,
        **more: How.kwargs,
    ) -> TransferT:
        """Begin a round of a tensor, declaring it first if need be.

        Args:
            spec: The tensor.
            begin: Called with the tensor's number and what follows here.

        Raises:
            DeclarationError: Ranks disagree about the tensor.
        """
        with self._lock:
            tensor = self._tensors.get(spec.name)
            if tensor is None or tensor.spec is not spec or tensor.id in self._withdrawn:
                tensor = self._look_up(spec)
            if self._changes is not None:
                self._go_over(tensor, self._changes.begin(tensor.id, spec))
            with self._gate:
                if tensor.id not in self._withdrawn:
                    transfer = begin(tensor.id, *how, **more)
                    tensor.last = transfer
                    return transfer
            raise self._give_up(tensor)

    def finished(self, spec: TensorSpec) -> None:
        """See ``Communicator.finished``. Told to the coordinator in batches: nothing waits for it."""
        with self._lock:
            tensor = self._tensors.pop(spec.name, None)
            if tensor is None:
                return
            # The next use of the name has the same generation; the coordinator tells finished uses apart.
            self._declared[spec.name] = tensor.generation
            if tensor.generation == 0:
                del self._declared[spec.name]
            self._plane.forget(tensor.id)
            self._finished.append(tensor.id)
            if len(self._finished) >= _FINISHED_BATCH:
                self._tell_finished()

    def refuse(self, spec: TensorSpec, message: str) -> None:
        """See ``Communicator.refuse``.

        Raises:
            DeclarationError: Always, with the message.
        """
        with self._lock:
            tensor = self._tensors.get(spec.name)
            if tensor is not None:
                raise self._refuse(tensor, message)
            generation = self._declared.get(spec.name, 0)
            self._declared[spec.name] = generation + 1
            self._control.notify(Refuse(spec.name, generation, message))
            raise DeclarationError(message)

    def explain(self, name: str) -> str:
        """See ``Communicator.explain``."""
        return self._reasons.get(name, f"tensor {name!r} was withdrawn")

    def missing(self, name: str, timeout_s: float | None) -> list[tuple[int, float]]:
        """See ``Communicator.missing``."""
        number = self.number(name)
        if number is None:
            return []
        answer = self._control.call(Missing, lambda request: AskMissing(request, number), timeout_s)
        return list(zip(answer.ranks, answer.heard, strict=True))

    def number(self, name: str) -> int | None:
        """The number of a declared tensor. Takes no lock."""
        tensor = self._tensors.get(name)
        return None if tensor is None else tensor.id

    def retract(self, message: Retract) -> None:
        """Another rank disagrees about a tensor: its round in flight fails, or its next use does.

        A round whose result the other rank has does not fail. Called on the control thread, so it must not
        wait for a declaration in progress.
        """
        self._reasons[message.name] = message.message
        with self._gate:
            self._withdrawn[message.id] = message.message
            tensor = self._tensors.get(message.name)
            if tensor is not None and tensor.id == message.id and tensor.last is not None:
                tensor.spared = tensor.last.round <= message.after
            if tensor is None or not tensor.spared:
                self._plane.retract(message.id)

    def _go_over(self, tensor: _Tensor, number: int) -> None:
        """From now on another number stands for the tensor."""
        if number == tensor.id:
            return
        before, tensor.id = tensor.id, number
        self._plane.forget(before)
        self._control.notify(Finished([before]))

    def _look_up(self, spec: TensorSpec) -> _Tensor:
        """What ``spec`` stands for, declared now if it was not before."""
        if not self._known(spec):
            self._declare_one(spec)
        return self._tensors[spec.name]

    def _known(self, spec: TensorSpec) -> bool:
        """Whether the tensor is declared as ``spec`` says. A different use is refused on all ranks."""
        tensor = self._tensors.get(spec.name)
        if tensor is None:
            return False
        if tensor.id in self._withdrawn:
            failed = tensor.last is not None and tensor.last.status != OK and not tensor.spared
            error = self._give_up(tensor)
            if failed:  # its handle tells
                return False
            raise error
        if tensor.spec == spec:
            tensor.spec = spec  # the same object from now on, most likely
            return True
        message = (
            f"tensor {spec.name!r}: rank {self._rank} declared {tensor.spec.describe()} and now uses "
            f"{spec.describe()}; use another name for another shape, dtype or op"
        )
        raise self._refuse(tensor, message)

    def _refuse(self, tensor: _Tensor, message: str) -> DeclarationError:
        """Fail a tensor on all ranks; returns the error for this one."""
        self.retract(Retract(tensor.id, tensor.spec.name, message, tensor.over))
        self._control.notify(Refuse(tensor.spec.name, tensor.generation, message, tensor.over))
        return self._give_up(tensor)

    def _give_up(self, tensor: _Tensor) -> DeclarationError:
        """Forget a withdrawn tensor, so that its name is free again; returns why it was withdrawn."""
        del self._tensors[tensor.spec.name]
        self._plane.forget(tensor.id)
        if self._changes is not None:
            self._changes.forget(tensor.id)
        with self._gate:
            return DeclarationError(self._withdrawn.pop(tensor.id))

    def _is_usable(self, spec: TensorSpec, refused: dict[str, str]) -> bool:
        """Whether the tensor need not be declared any more; why, if it cannot be, goes to ``refused``."""
        try:
            return self._known(spec)
        except DeclarationError as error:
            refused[spec.name] = str(error)
            return True

    def _declare_one(self, spec: TensorSpec) -> None:
        refused: dict[str, str] = {}
        self._declare([spec], refused)
        if refused:
            raise DeclarationError(refused[spec.name])

    def _declare(self, specs: Sequence[TensorSpec], refused: dict[str, str]) -> None:
        """Declare tensors; why those are refused that are, by name, goes to ``refused``."""
        if self._finished:
            self._tell_finished()
        generations = [self._declared.get(spec.name, 0) for spec in specs]
        for spec, generation in zip(specs, generations, strict=True):
            self._declared[spec.name] = generation + 1
        answer = self._control.call(Declared, lambda request: Declare(request, list(specs), generations))
        for spec, entry in zip(specs, answer.tensors, strict=True):
            if isinstance(entry, Refusal):
                refused[spec.name] = entry.message
            else:
                self._plane.install(spec, entry)
                self._tensors[spec.name] = _Tensor(spec, entry.id, entry.generation)

    def _tell_finished(self) -> None:
        ids, self._finished = self._finished, []
        self._control.notify(Finished(ids))
