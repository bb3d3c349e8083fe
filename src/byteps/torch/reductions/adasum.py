"""``op=Adasum`` for tensors, and for optimizers that combine what their steps have changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.optim import Optimizer

from byteps.adapters import adasum as combining
from byteps.adapters.handles import ResultHandle
from byteps.adapters.later import InBackground
from byteps.adapters.process_sets import ProcessSet
from byteps.adapters.reductions import Sum
from byteps.session import Session
from byteps.torch.reduction import Reduction
from byteps.torch.transfers import TensorHandle

_NARROW = (torch.float16, torch.bfloat16)


class Combining(Reduction):
    """An Adasum with its arguments resolved, in place of the reduction that other operators mean."""

    __slots__ = ()

    def in_place(self, tensor: Tensor) -> TensorHandle:
        """See ``Reduction.in_place``."""

        def store(result: Tensor) -> Tensor:
            with torch.no_grad():
                return tensor.copy_(result)

        return self.out_of_place(tensor).map(store)

    def out_of_place(self, tensor: Tensor) -> TensorHandle:
        """See ``Reduction.out_of_place``."""
        wide = tensor.detach().to("cpu", torch.float32 if tensor.dtype in _NARROW else tensor.dtype)
        values = wide.contiguous().numpy()
        later = InBackground(combining.adasum(self.group, (self.name, self.ephemeral), values))
        return ResultHandle(self.name, later, lambda: torch.from_numpy(later.wait()).to(tensor))

    def gradient(self, gradient: Tensor) -> Tensor:
        """See ``Reduction.gradient``."""
        raise ValueError(f"{self.name}: Adasum has no gradient here: detach() its input")


def combining_of(
    tensor: Tensor,
    name: str | None,
    scales: tuple[float, float] = (1.0, 1.0),
    session: Session | None = None,
    process_set: ProcessSet | None = None,
) -> Combining:
    """Resolve a call's arguments.

    Raises:
        ValueError: The tensor is not floating-point, or factors are given.
        NotImplementedError: A process set is given.
    """
    if not tensor.is_floating_point() or tensor.layout != torch.strided:
        raise ValueError(f"Adasum needs dense floating-point tensors, not {tensor.dtype} {tensor.layout}")
    group, (full_name, ephemeral) = combining.adasum_group(name, scales, process_set, session)
    return Combining(group.session, full_name, Sum, ephemeral=ephemeral)


class AdasumOptimizer(Optimizer):
    """Steps locally, then combines what each step has changed: see ``DistributedOptimizer``."""

    __slots__ = ("_names", "_plain_class", "_session")

    _names: dict[int, str]
    _plain_class: type[Optimizer]
    _session: Session

    def synchronize(self) -> None:
        """Nothing: gradients stay those of this rank."""

    def skip_synchronize(self) -> NoReturn:
        """Raises AssertionError: what ``step()`` changes must be combined."""
        raise AssertionError("skip_synchronize() cannot be used with op=Adasum: step() combines its changes")

    def step(self, closure: Any = None, **options: Any) -> Any:
        """Step on this rank's gradients; set parameters to where they were plus the combined change."""
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        before = [parameter.detach().clone() for parameter in parameters]
        result = self._plain_class.step(self, *([] if closure is None else [closure]), **options)
        with torch.no_grad():
            handles = [
                combining_of(start, self._names[id(parameter)], session=self._session).in_place(
                    parameter - start
                )
                for parameter, start in zip(parameters, before, strict=True)
            ]
            for parameter, start, handle in zip(parameters, before, handles, strict=True):
                parameter.copy_(start + handle.synchronize())
        return result


def adasum_optimizer(
    optimizer: Optimizer, named: Sequence[tuple[str, Tensor]], prefix: str, session: Session
) -> Optimizer:
    """Wrap an optimizer; the result shares all attributes with it."""
    plain = type(optimizer)
    wrapper = type(plain.__name__, (AdasumOptimizer, plain), {"__module__": plain.__module__})
    wrapped: AdasumOptimizer = object.__new__(wrapper)
    wrapped.__dict__ = optimizer.__dict__
    wrapped._plain_class = plain
    wrapped._names = {id(parameter): f"{prefix}.{name}" for name, parameter in named}
    wrapped._session = session
    return wrapped
