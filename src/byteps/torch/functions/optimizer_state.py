"""``broadcast_optimizer_state``: the root's state and options on every rank, without any optimizer step.

The root describes its state as one object; its tensors follow as broadcasts of their own. Ranks whose state
is empty, as after a start, get entries made from the description.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import LBFGS, Optimizer

from byteps.adapters.current import current
from byteps.adapters.exchange import ObjectExchange
from byteps.adapters.objects import ObjectCodec
from byteps.adapters.reductions import checked_root
from byteps.session import Session
from byteps.torch.cross_barrier.optimizer import CrossingOptimizer
from byteps.torch.functions.broadcasting import copy_of
from byteps.torch.functions.objects import tensors_beside
from byteps.torch.functions.parameters import broadcast_all


def broadcast_optimizer_state(
    optimizer: Optimizer,
    root_rank: int,
    model: object = None,
    *,
    allow_pickle: bool = False,
    session: Session | None = None,
) -> None:
    """Give every rank the root's optimizer state and options (learning rates and all others).

    Args:
        optimizer: Holds the same parameter groups on all ranks, in the same order.
        root_rank: The rank whose state all get.
        model: Accepted for Horovod scripts; means nothing.
        allow_pickle: Allow options and state that only pickle can send; the same on all ranks.
        session: The session of ``init()`` if not given.

    Raises:
        ValueError: The optimizer is LBFGS, whose state is a history of steps; its groups differ from the
            root's; the root is no rank.
        TypeError: ``optimizer`` is no optimizer, or the root's state holds what cannot be sent.
        NotInitialized: ``init()`` has not been called.
    """
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"expected a torch.optim.Optimizer, got {type(optimizer).__name__}")
    if isinstance(optimizer, LBFGS):
        raise ValueError(
            "cannot broadcast torch.optim.LBFGS state: its state is the history of its own steps"
        )
    if isinstance(optimizer, CrossingOptimizer):
        optimizer.flush()
    session = current() if session is None else session
    root = checked_root(session, root_rank)
    tensors: list[Tensor] = []
    codec = ObjectCodec([tensors_beside(tensors, _device(optimizer))])
    exchange = ObjectExchange(session, codec, allow_pickle)
    description = exchange.broadcast(_describe(optimizer) if session.rank == root else None, root, None)
    broadcast_all([(copy_of(tensor, root, None, session), tensor) for tensor in tensors])
    if session.rank != root:
        assert isinstance(description, dict)
        _install(optimizer, description, root)


def _device(optimizer: Optimizer) -> torch.device:
    devices = (parameter.device for group in optimizer.param_groups for parameter in group["params"])
    return next(devices, torch.device("cpu"))


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _describe(optimizer: Optimizer) -> dict[str, Any]:
    """State and options in plain data and tensors; parameters are numbered through all groups."""
    numbers: dict[object, int] = {
        parameter: number for number, parameter in enumerate(_parameters(optimizer))
    }
    return {
        "shapes": [[list(p.shape) for p in group["params"]] for group in optimizer.param_groups],
        "options": [
            {key: value for key, value in group.items() if key != "params"}
            for group in optimizer.param_groups
        ],
        # An optimizer may also keep state that belongs to no parameter, under keys of its own.
        "state": [[numbers.get(key, key), value] for key, value in optimizer.state.items()],
    }


def _install(optimizer: Optimizer, description: dict[str, Any], root: int) -> None:
    shapes = [[list(p.shape) for p in group["params"]] for group in optimizer.param_groups]
    if shapes != description["shapes"]:
        raise ValueError(
            f"the optimizer's parameter groups differ from those of rank {root}: here shapes are {shapes}, "
            f"there {description['shapes']}. Build the same optimizer on every rank before the broadcast"
        )
    parameters = _parameters(optimizer)
    optimizer.state.clear()
    for key, value in description["state"]:
        optimizer.state[parameters[key] if isinstance(key, int) else key] = value
    for group, options in zip(optimizer.param_groups, description["options"], strict=True):
        for key in set(group) - set(options) - {"params"}:
            del group[key]
        for key, value in options.items():
            group[key] = _kept(group.get(key), value)


def _kept(mine: object, theirs: object) -> object:
    """The new value of an option; a tensor stays the same object, since schedulers hold on to it."""
    if not (isinstance(mine, Tensor) and isinstance(theirs, Tensor)) or mine.shape != theirs.shape:
        return theirs
    with torch.no_grad():
        return mine.copy_(theirs)
