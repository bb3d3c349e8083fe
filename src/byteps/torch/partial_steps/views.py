"""One optimizer, stepped over some of its parameters at a time.

A view is a shallow copy of the optimizer: its ``param_groups`` hold only the wanted parameters, with the
hyper-parameters of a chosen moment, and its ``state`` is the very same object. It is stepped through the
class, past what learning rate schedules have put on the instance. This gives what the optimizer's own step
gives if that treats each parameter by itself (``viewable``).
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._python_dispatch import _disable_current_modes

Group = dict[str, Any]


def snapshot(optimizer: Optimizer) -> dict[int, Group]:
    """The hyper-parameters that apply to each parameter now, by its ``id``."""
    groups: dict[int, Group] = {}
    for group in optimizer.param_groups:
        kept = {name: _kept(value) for name, value in group.items() if name != "params"}
        groups.update(dict.fromkeys(map(id, group["params"]), kept))
    return groups


def _kept(value: Any) -> Any:
    """A value that schedules may change in place, as it is now."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    return copy.copy(value) if isinstance(value, list | dict) else value


def update(optimizer: Optimizer, parameters: Sequence[tuple[Tensor, Group]]) -> None:
    """Step some parameters, whose gradients are in ``.grad``.

    It may be called wherever a parameter is read, also within ``inference_mode``, ``autocast`` or a dispatch
    mode such as that of selective checkpointing; the update is no part of those.

    Args:
        optimizer: The whole optimizer.
        parameters: Each with its hyper-parameters from ``snapshot``.
    """
    if not parameters:
        return
    device = parameters[0][0].device.type
    with contextlib.ExitStack() as outside:
        if torch.is_inference_mode_enabled():
            outside.enter_context(torch.inference_mode(False))
        if torch._C._len_torch_dispatch_stack():
            outside.enter_context(_disable_current_modes())
        if torch.is_autocast_enabled(device):
            outside.enter_context(torch.autocast(device, enabled=False))
        own_step(type(optimizer))(view(optimizer, parameters))


def culprit(optimizer: Optimizer, parameters: Sequence[tuple[Tensor, Group]]) -> int:
    """After an update has failed: the number of the parameter for which it fails, tried on copies."""
    for number, (parameter, group) in enumerate(parameters):
        double = parameter.detach().clone().requires_grad_()
        double.grad = parameter.grad
        alone = view(optimizer, [(double, group)])
        alone.state = {double: copy.deepcopy(optimizer.state.get(parameter, {}))}  # type: ignore[assignment]
        try:
            own_step(type(optimizer))(alone)
        except Exception:  # whatever an optimizer may raise
            return number
    return 0


def view(optimizer: Optimizer, parameters: Iterable[tuple[Tensor, Group]]) -> Optimizer:
    """The optimizer reduced to some parameters. Arguments are those of ``update``."""
    groups: dict[int, Group] = {}
    for parameter, kept in parameters:
        group = groups.get(id(kept))
        if group is None:
            groups[id(kept)] = {"params": [parameter], **kept}
        else:
            group["params"].append(parameter)
    made: Optimizer = object.__new__(type(optimizer))
    made.__dict__ = {**optimizer.__dict__, "param_groups": list(groups.values())}
    return made


def own_step(kind: type[Optimizer]) -> Callable[..., Any]:
    """The ``step`` of a class as its author wrote it, without the calls of step hooks around it."""
    step: Any = kind.step
    unhooked: Callable[..., Any] = step.__wrapped__ if getattr(step, "hooked", False) else step
    return unhooked
