"""``CrossBarrier``: the next forward pass starts while gradients of the last step are on their way.

Each parameter waits for its own gradient where it is read (``reads``, ``crossing``), and the unmodified
optimizer updates what has arrived (``views``). The idea is ByteScheduler's (Peng et al., SOSP 2019); here it
is for any optimizer that treats its parameters one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from byteps.adapters.reductions import Average
from byteps.dtypes import ReduceOp
from byteps.session import Session
from byteps.torch.compression import Compression, Compressor
from byteps.torch.cross_barrier.barrier import Barrier
from byteps.torch.optimizer.synchronized import DistributedOptimizer, SynchronizedOptimizer
from byteps.torch.partial_steps.viewable import check_viewable
from byteps.torch.partial_steps.views import view

__all__ = ["CrossBarrier"]

_CLOSURE = (
    "CrossBarrier's step() takes no closure: the update would have to be done before it returns. Compute the "
    "loss and call backward() before step(), or use DistributedOptimizer"
)


class CrossingOptimizer(SynchronizedOptimizer):
    """What ``CrossBarrier`` returns, together with the class of the optimizer that it wraps."""

    __slots__ = ()

    _barrier: Barrier | None

    def flush(self) -> None:
        """Wait until all parameters are up to date, and every ``.grad`` is the reduced one of the last step.

        Raises:
            RuntimeError: An update failed.
            BytePSError: The job failed.
        """
        if self._barrier is not None:
            self._barrier.finish()

    def state_dict(self) -> dict[str, Any]:
        """See ``torch.optim.Optimizer``. Waits for all updates."""
        self.flush()
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """See ``torch.optim.Optimizer``. Waits for all updates; gradients that no step used are dropped."""
        self.flush()
        super().load_state_dict(state_dict)

    def __reduce_ex__(self, protocol: Any) -> Any:
        self.flush()
        return super().__reduce_ex__(protocol)

    def _take_step(self, closure: Callable[[], Any] | None, options: dict[str, Any]) -> Any:
        if closure is not None:
            raise ValueError(_CLOSURE)
        if self._barrier is None or options or not self._may_cross():
            self.flush()
            return super()._take_step(closure, options)
        self._adopt()
        self._barrier.cross()
        self._opt_called = True  # learning rate schedules look for it, and warn where it is not
        self._synchronized = self._warns = False
        return None

    def _may_cross(self) -> bool:
        """Whether nobody has had the gradients already, or wants to see the update when it is done."""
        assigned = self.__dict__.get("step")
        return not (
            self._skips
            or self._is_reduced()
            or self._optimizer_step_pre_hooks
            or self._optimizer_step_post_hooks
            or _global_optimizer_pre_hooks
            or _global_optimizer_post_hooks
            or (assigned is not None and not hasattr(assigned, "_wrapped_by_lr_sched"))
        )

    def _reduce(self) -> None:
        self.flush()
        super()._reduce()

    def _adopt(self) -> None:
        if self._has_more():
            super()._adopt()
            assert self._barrier is not None
            self._barrier.adopt()

    def _zero(self, *args: Any, **kwargs: Any) -> None:
        if self._barrier is None:
            super()._zero(*args, **kwargs)
            return
        if type(self._plain).zero_grad is not Optimizer.zero_grad:
            self.flush()
        waiting = self._barrier.zero_later(*args, **kwargs)
        held = [parameter for group in self.param_groups for parameter in group["params"]]
        rest = [(parameter, _NO_GROUP) for parameter in held if id(parameter) not in waiting]
        if rest:
            type(self._plain).zero_grad(view(self._plain, rest), *args, **kwargs)


_NO_GROUP: dict[str, Any] = {}


def CrossBarrier(  # noqa: N802  (the name that scripts use)
    model: Module,
    optimizer: Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    num_steps: int | None = None,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    sparse_as_dense: bool = False,
    *,
    session: Session | None = None,
) -> CrossingOptimizer:
    """Wrap an optimizer so that ``step()`` does not wait for the gradients that are still on their way.

    Each parameter is updated when the next forward pass reads it, by the unmodified optimizer and with the
    hyper-parameters that it had at the ``step()``. The result is bitwise what ``DistributedOptimizer`` gives.
    ``state_dict()``, ``parameters()`` and copies of the model wait for all updates, and so does ``flush()``.

    After ``synchronize()``, with ``GradScaler`` and while step hooks are registered, a step does not cross.

    Args:
        model: Reads the parameters. Parameters of the optimizer that are not the model's are waited for in
            ``step()``; pass ``torch.nn.ModuleList([...])`` if there are several models.
        optimizer: An optimizer that updates each parameter by itself, plain or by ``DistributedOptimizer``,
            which then becomes the result.
        named_parameters: As for ``DistributedOptimizer``; ``model.named_parameters()`` if not given.
        compression, backward_passes_per_step, op, gradient_predivide_factor, sparse_as_dense, session: As for
            ``DistributedOptimizer``. They must not be given if the optimizer is distributed already.
        num_steps: Accepted for BytePS scripts; nothing has to be drained at the end.

    Raises:
        TypeError: ``model`` is no module, or ``optimizer`` no torch optimizer.
        ValueError: The optimizer cannot cross the barrier; the message says why.
        ValueError, NotInitialized, DeclarationError: As ``DistributedOptimizer``.
    """
    if not isinstance(model, Module):
        raise TypeError(f"model: expected a torch.nn.Module, got {type(model).__name__}")
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer: expected a torch.optim.Optimizer, got {type(optimizer).__name__}")
    if isinstance(optimizer, CrossingOptimizer):
        raise ValueError("this optimizer crosses the barrier already: wrap each optimizer once")
    how = (compression, backward_passes_per_step, op, gradient_predivide_factor)
    if isinstance(optimizer, SynchronizedOptimizer):
        check_viewable(optimizer._plain)
        _check_unchanged(*how, sparse_as_dense)
        return _crossing(model, optimizer)
    check_viewable(optimizer)
    names = _names(model, optimizer) if named_parameters is None else named_parameters
    wrapped = DistributedOptimizer(optimizer, names, *how, sparse_as_dense=sparse_as_dense, session=session)
    return _crossing(model, wrapped)


def _check_unchanged(*given: object) -> None:
    if given != (Compression.none, 1, Average, 1.0, False):
        raise ValueError(
            "the optimizer is distributed already: give compression=, backward_passes_per_step=, op=, "
            "gradient_predivide_factor= and sparse_as_dense= to DistributedOptimizer"
        )


def _names(model: Module, optimizer: Optimizer) -> list[tuple[str, Tensor]]:
    """The model's names, and made-up ones for what the optimizer holds besides."""
    names = list(model.named_parameters())
    known = {id(parameter) for _, parameter in names}
    others = [p for group in optimizer.param_groups for p in group["params"] if id(p) not in known]
    return [*names, *((f"noname.{number}", parameter) for number, parameter in enumerate(others))]


def _crossing(model: Module, optimizer: SynchronizedOptimizer) -> CrossingOptimizer:
    """The optimizer itself, from now on of a class that crosses."""
    plain = optimizer._plain
    kind = type(plain)
    crossing = type(kind.__name__, (CrossingOptimizer, kind), {"__module__": kind.__module__})
    optimizer.__class__ = crossing
    assert isinstance(optimizer, CrossingOptimizer)
    if optimizer._reducer is not None:
        optimizer._barrier = Barrier(model, plain, optimizer._reducer)
    return optimizer
