"""``DistributedOptimizer``: any torch optimizer, stepping on gradients that are reduced over all ranks.

The result is of a class derived from the optimizer's own, made without calling its constructor, and shares
all attributes with it: state, parameter groups and defaults are the very same objects. What belongs to
byteps is in slots of the wrapper, out of the way of ``state_dict`` and of the optimizer's own attributes.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

from torch import Tensor
from torch.optim import LBFGS, Optimizer

from byteps.adapters.current import current
from byteps.adapters.gradients import check_foreign, checked_passes, gradient_prefix, gradient_scales
from byteps.adapters.parameters import named_parameters_of
from byteps.adapters.process_sets import ProcessSet, group_of_member
from byteps.adapters.reductions import Adasum, Average, Combination, Operator, Sum
from byteps.session import Session
from byteps.torch.compression import Compression, Compressor
from byteps.torch.gradients.reducer import GradientReducer
from byteps.torch.gradients.slots import Exchange
from byteps.torch.optimizer.unscaling import UNSCALED, has_unscaled
from byteps.torch.reductions.adasum import adasum_optimizer
from byteps.trace import Trace

_ADVICE = (
    "Pass backward_passes_per_step=N to DistributedOptimizer, or call set_backward_passes_per_step(N), for N "
    "passes before each step(); call optimizer.zero_grad() first if the earlier gradients are not to be used."
)
_STEP_AFTER_SYNCHRONIZE = (
    "optimizer.step() called without optimizer.skip_synchronize() context after optimizer.synchronize(). The "
    "gradients are not reduced again. Use `with optimizer.skip_synchronize(): optimizer.step()` to say so."
)


class _Step:
    """The ``step`` attribute of wrapped optimizers.

    It takes precedence over a ``step`` among the shared attributes, where learning rate schedules that were
    made for the plain optimizer have put theirs. What is assigned on the wrapper is kept apart from those.
    """

    hooked = True  # keeps Optimizer from wrapping the class's step once more

    def __get__(self, optimizer: SynchronizedOptimizer | None, owner: type) -> Any:
        if optimizer is None:
            return self
        return optimizer._assigned_step or MethodType(_step, optimizer)

    def __set__(self, optimizer: SynchronizedOptimizer, value: Callable[..., Any]) -> None:
        optimizer._assigned_step = value

    def __delete__(self, optimizer: SynchronizedOptimizer) -> None:
        optimizer._assigned_step = None


def _step(optimizer: SynchronizedOptimizer, closure: Callable[[], Any] | None = None, **options: Any) -> Any:
    """Reduce the gradients over all ranks, unless within ``skip_synchronize()``, and update the parameters.

    Args:
        optimizer: The wrapped optimizer.
        closure: Computes gradients and returns the loss; they are reduced each time it has been called.
        options: Passed on to the optimizer.

    Returns:
        What the optimizer returns: the closure's loss.

    Raises:
        RuntimeError: A gradient was changed while it was being sent.
        BytePSError: The job failed.
    """
    trace = optimizer._trace()
    begin_ns = trace.now_ns()
    result = optimizer._take_step(closure, options)
    trace.span("step", "", begin_ns)
    return result


def _plain_copy(kind: type[Optimizer], state: dict[str, Any]) -> Optimizer:
    copied: Optimizer = object.__new__(kind)
    copied.__setstate__(state)
    return copied


class SynchronizedOptimizer(Optimizer):
    """What ``DistributedOptimizer`` returns, together with the class of the optimizer that it wraps."""

    __slots__ = (
        "_assigned_step",
        "_barrier",
        "_passes",
        "_plain",
        "_reducer",
        "_skips",
        "_synchronized",
        "_warns",
    )

    _assigned_step: Callable[..., Any] | None
    _barrier: object | None  # only ``CrossBarrier`` makes one
    _passes: int
    _plain: Optimizer
    _reducer: GradientReducer | None
    _skips: bool
    _synchronized: bool
    _warns: bool

    step = _Step()

    def synchronize(self) -> None:
        """Wait until every gradient is the reduced one, for example to clip the gradients before ``step()``.

        Raises:
            RuntimeError: A gradient was changed while it was being sent.
            BytePSError: The job failed.
        """
        self._reduce()
        self._warns = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within this, ``step()`` uses the gradients as they are. Call ``synchronize()`` before."""
        self._skips = True
        try:
            yield
        finally:
            self._skips = False

    @property
    def backward_passes_per_step(self) -> int:
        """Backward passes whose gradients are summed before they are reduced."""
        return self._passes

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Expect another number of backward passes before each ``step()``.

        Raises:
            ValueError: It is not a positive integer.
        """
        self._passes = checked_passes(passes)
        if self._reducer is not None:
            self._reducer.set_passes(passes)

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Drop the gradients. Arguments are the optimizer's own, such as ``set_to_none``.

        What is in flight is waited for first: on all ranks the gradients were computed and not used, as in
        GAN loops.
        """
        if self._reducer is not None:
            self._reducer.discard()
        self._synchronized = self._warns = False
        self._zero(*args, **kwargs)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """See ``torch.optim.Optimizer``. Gradients in flight are dropped."""
        if self._reducer is not None:
            self._reducer.discard()
        super().load_state_dict(state_dict)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copies and pickles are plain optimizers: a session cannot be copied."""
        return _plain_copy, (type(self._plain), self._plain.__getstate__())

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Asked by ``GradScaler.step`` before it unscales gradients and looks for infinities.

        All ranks must find the same, so the gradients must be reduced by then.
        """
        reducer = None if self._skips or self._is_reduced() else self._reducer
        if reducer is not None and has_unscaled(sys._getframe(1), self):
            reducer.discard()
            raise RuntimeError(UNSCALED)
        self._reduce_for_step()
        return bool(getattr(self._plain, "_step_supports_amp_scaling", False))

    @_step_supports_amp_scaling.setter
    def _step_supports_amp_scaling(self, value: bool) -> None:
        self._plain._step_supports_amp_scaling = value  # type: ignore[attr-defined]

    def _take_step(self, closure: Callable[[], Any] | None, options: dict[str, Any]) -> Any:
        """What ``step`` does. Whoever derives from this class replaces it here: ``step`` is no method."""
        if closure is not None:
            result = self._plain_step()(self._reducing(closure), **options)
        else:
            self._reduce_for_step()
            trace = self._trace()
            begin_ns = trace.now_ns()
            result = self._plain_step()(**options)
            trace.span("updated", "", begin_ns)
        self._after_step()
        return result

    def _zero(self, *args: Any, **kwargs: Any) -> None:
        super().zero_grad(*args, **kwargs)

    def _plain_step(self) -> Callable[..., Any]:
        """The optimizer's own step, or what a learning rate schedule has put in its place."""
        assigned: Callable[..., Any] | None = self.__dict__.get("step")
        return super().step if assigned is None else assigned

    def _reducing(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def reduced() -> Any:
            loss = closure()
            self._reduce_for_step()
            return loss

        return reduced

    def _reduce_for_step(self) -> None:
        if self._skips:
            return
        if self._is_reduced() and self._warns:
            warnings.warn(_STEP_AFTER_SYNCHRONIZE, stacklevel=4)
        self._reduce()

    def _is_reduced(self) -> bool:
        """Whether there is nothing new since the gradients were reduced."""
        return self._synchronized and not (self._reducer is not None and self._reducer.pending)

    def _reduce(self) -> None:
        if self._reducer is None or self._is_reduced():
            return
        self._adopt()
        self._reducer.close_round()
        self._synchronized, self._warns = True, False

    def _adopt(self) -> None:
        """Take in parameters that were added to the optimizer after it was wrapped."""
        assert self._reducer is not None
        if not self._has_more():
            return
        positions = named_parameters_of([group["params"] for group in self.param_groups], None)
        self._reducer.add([(name, p) for name, p in positions if not self._reducer.holds(p)])

    def _has_more(self) -> bool:
        """Whether parameters were added."""
        assert self._reducer is not None
        return sum(len(group["params"]) for group in self.param_groups) != len(self._reducer)

    def _trace(self) -> Trace:
        return Trace() if self._reducer is None else self._reducer.session.trace

    def _after_step(self) -> None:
        self._synchronized = self._warns = False
        if self._reducer is not None:
            self._reducer.mark_used()


def DistributedOptimizer(  # noqa: N802  (the name that scripts use)
    optimizer: Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: Operator = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: object = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet | None = None,
    *,
    session: Session | None = None,
) -> Any:
    """Wrap an optimizer so that it steps on gradients that are reduced over all ranks.

    Gradients are sent while the backward pass still runs. Several backward passes before a ``step()`` sum
    their gradients, as torch does. The wrapper is an instance of the optimizer's class and shares state,
    parameter groups and defaults with it, so schedules may be made for either. To change gradients before
    the step, call ``synchronize()``, change them, and step within ``skip_synchronize()``;
    ``GradScaler.step`` needs neither.

    Args:
        optimizer: Any optimizer that updates parameters from their ``.grad``.
        named_parameters: ``model.named_parameters()``. Names identify gradients across ranks, and their order
            is the first guess at the order of the forward pass. Without it, positions serve as names.
        compression: One of ``Compression``, or a class like them.
        backward_passes_per_step: Backward passes before each ``step()``.
        op: ``Average`` or ``Sum``; with ``Adasum`` each rank steps on its own gradients, and what the steps
            have changed is combined.
        gradient_predivide_factor: Divides before the sum and multiplies after it; only with ``Average``.
        num_groups, groups: Accepted for Horovod scripts; servers reduce each gradient by itself.
        sparse_as_dense: Make sparse gradients dense instead of refusing them.
        process_set: The ranks whose gradients are reduced; all if not given. Other ranks step on their own.
        session: The session of ``init()`` if not given.

    Raises:
        TypeError: ``optimizer`` is no torch optimizer.
        ValueError: It is LBFGS or wrapped already, ``named_parameters`` is incomplete or ambiguous, or
            another argument cannot work.
        NotInitialized: ``init()`` has not been called.
        DeclarationError: Ranks differ in a parameter's shape or dtype.
    """
    _check_optimizer(optimizer)
    passes = checked_passes(backward_passes_per_step)
    scales = gradient_scales(Sum if op == Adasum else op, gradient_predivide_factor)
    check_foreign(num_groups, groups, process_set)
    parameters = named_parameters_of([group["params"] for group in optimizer.param_groups], named_parameters)
    session = current() if session is None else session
    if isinstance(op, Combination):
        _check_all(process_set)
        return adasum_optimizer(optimizer, parameters, gradient_prefix(session), session)
    wrapped = _share(optimizer, passes)
    group = group_of_member(process_set, session)
    if group is not None and (session.size > 1 or session.config.force_distributed):
        how = (op, scales, compression, sparse_as_dense, _ADVICE, group.members)
        exchange = Exchange(session, gradient_prefix(session, group.number), *how)
        wrapped._reducer = GradientReducer(exchange, parameters, passes)
    return wrapped


def _check_all(process_set: ProcessSet | None) -> None:
    if process_set is not None and process_set.process_set_id != 0:
        raise NotImplementedError("Adasum is for all ranks: it takes no process set")


def _share(optimizer: Optimizer, passes: int) -> SynchronizedOptimizer:
    """A wrapper with the optimizer's attributes."""
    plain = type(optimizer)
    wrapper = type(plain.__name__, (SynchronizedOptimizer, plain), {"__module__": plain.__module__})
    wrapped: SynchronizedOptimizer = object.__new__(wrapper)
    wrapped.__dict__ = optimizer.__dict__
    wrapped._plain = optimizer
    wrapped._passes = passes
    wrapped._reducer = wrapped._assigned_step = wrapped._barrier = None
    wrapped._skips = wrapped._synchronized = wrapped._warns = False
    return wrapped


def _check_optimizer(optimizer: object) -> None:
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"expected a torch.optim.Optimizer, got {type(optimizer).__name__}")
    if isinstance(optimizer, SynchronizedOptimizer):
        raise ValueError("this optimizer is distributed already: wrap each optimizer once")
    if isinstance(optimizer, LBFGS):
        raise ValueError(
            "LBFGS cannot be distributed: its line search follows each rank's own loss, so ranks would take "
            "different numbers of steps. Average the loss and gradients in the closure by push_pull instead"
        )
