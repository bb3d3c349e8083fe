"""Whether an optimizer gives the same if it updates its parameters one at a time: tried on small copies."""

from __future__ import annotations

import copy
import inspect
from collections import OrderedDict, defaultdict
from typing import Any

import torch
from torch import Tensor
from torch.optim import LBFGS, Optimizer

from byteps.torch.partial_steps.views import own_step, snapshot, update

_CROP = 2
_PER_GROUP = 3
# Small and large gradients, so that clipping within the optimizer shows, and enough steps for counters to.
_GRADIENT_SCALES = (0.01, 100.0, 1.0)
_LEARNING_RATE = 0.1


def check_viewable(optimizer: Optimizer) -> None:
    """Refuse an optimizer that cannot be stepped over some of its parameters at a time.

    Copies of it, over small parts of at most three of its parameters in each group, take a few steps: one
    with all parameters together, the other with one at a time. Whatever keeps counters or vectors outside
    ``state`` or looks at several parameters at once (a global norm, for example) ends with other values.

    Raises:
        ValueError: It cannot; the message says why.
    """
    name = type(optimizer).__name__
    if isinstance(optimizer, LBFGS):
        raise ValueError("LBFGS cannot cross the barrier: it needs a closure and all parameters at once")
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ValueError(f"{name} cannot cross the barrier: its step() needs a closure")
    try:
        together, apart = _Trial(optimizer), _Trial(optimizer)
        for number, scale in enumerate(_GRADIENT_SCALES):
            together.step(number, scale, at_once=True)
            apart.step(number, scale, at_once=False)
    except Exception as error:  # whatever an optimizer may raise
        raise ValueError(
            f"{name} cannot cross the barrier: a copy of it fails on small parameters ({error}). Use "
            "DistributedOptimizer"
        ) from error
    pairs = zip(together.parameters, apart.parameters, strict=True)
    if not all(torch.allclose(one, other, equal_nan=True) for one, other in pairs):
        raise ValueError(
            f"{name} cannot cross the barrier: updating its parameters one at a time gives other values "
            "than updating them together. It keeps something outside its `state`, or looks at several "
            "parameters at once. Use DistributedOptimizer"
        )


class _Trial:
    """A copy of an optimizer, without its state, over parts of some parameters."""

    def __init__(self, optimizer: Optimizer) -> None:
        copies: dict[int, Any] = {}  # of what the optimizer may refer to elsewhere too
        groups = []
        for group in optimizer.param_groups:
            parts = [_part(parameter) for parameter in group["params"]]
            copies.update((id(whole), part) for whole, part in zip(group["params"], parts, strict=True))
            groups.append({**group, "params": parts[:_PER_GROUP]})
        self.parameters = [parameter for group in groups for parameter in group["params"]]
        self._optimizer: Optimizer = object.__new__(type(optimizer))
        for name, value in optimizer.__dict__.items():
            if name.endswith("_hooks"):
                self._optimizer.__dict__[name] = OrderedDict()
            elif name not in ("param_groups", "state", "step"):
                self._optimizer.__dict__[name] = copy.deepcopy(value, copies)
        self._optimizer.state = defaultdict(dict)
        self._optimizer.param_groups = [_trial_group(group) for group in groups]

    def step(self, number: int, scale: float, at_once: bool) -> None:
        generator = torch.Generator().manual_seed(number)
        for parameter in self.parameters:
            gradient = torch.randn(parameter.shape, generator=generator) * scale
            parameter.grad = gradient.to(parameter)
        if at_once:
            own_step(type(self._optimizer))(self._optimizer)
            return
        groups = snapshot(self._optimizer)
        for parameter in self.parameters:
            update(self._optimizer, [(parameter, groups[id(parameter)])])


def _part(parameter: Tensor) -> Tensor:
    """A copy of a corner of a parameter, of as many dimensions."""
    corner = parameter.detach()[tuple(slice(_CROP) for _ in parameter.shape)]
    return corner.clone().requires_grad_(parameter.requires_grad)


def _trial_group(group: dict[str, Any]) -> dict[str, Any]:
    """A copy of a parameter group that moves its parameters, even if a schedule starts with a rate of 0."""
    made = {name: value if name == "params" else copy.deepcopy(value) for name, value in group.items()}
    if "lr" in made and not float(made["lr"]):
        made["lr"] = made["lr"] + _LEARNING_RATE
    return made
