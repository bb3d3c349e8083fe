"""``DistributedOptimizer``: MXNet's optimizers on reduced gradients, for ``Module`` and loops of your own."""

from __future__ import annotations

import operator
from typing import Any

import mxnet as mx

from byteps.adapters.gradients import gradient_prefix
from byteps.adapters.optimizer_class import is_distributed, sharing
from byteps.mxnet.training.gradients import reducer_of


def DistributedOptimizer(optimizer: Any, **options: Any) -> Any:  # noqa: N802  (the name that scripts use)
    """Wrap an optimizer so that it updates by gradients that are averaged over all ranks.

    The result is an instance of the optimizer's class and shares all attributes with it; pickled or copied,
    it is the plain one. The index of a parameter is taken for its place in the forward pass: 0 is the most
    urgent. Gradients hold the averages afterwards. With Gluon, use ``DistributedTrainer``.

    Args:
        optimizer: An ``mx.optimizer.Optimizer``.
        options: ``compression``, ``op``, ``gradient_predivide_factor``, ``session`` and others of
            ``adapters.gradients.gradient_reducer``.

    Raises:
        TypeError: ``optimizer`` is none, or there is no such option.
        ValueError: It is distributed already, or an option cannot work.
        NotInitialized: ``init()`` has not been called.
    """
    if not isinstance(optimizer, mx.optimizer.Optimizer):
        raise TypeError(f"expected an mx.optimizer.Optimizer, got {type(optimizer).__name__}")
    if is_distributed(optimizer):
        raise ValueError("this optimizer is distributed already: wrap each optimizer once")
    reducer = reducer_of(**options)
    prefix = gradient_prefix(reducer.rounds.session)

    def reduce(index: Any, grad: Any) -> None:
        several = isinstance(index, list | tuple)
        pairs = zip(index, grad, strict=True) if several else [(index, grad)]
        for number, gradient in pairs:
            reducer.begin([(f"{prefix}.{number}", -number if isinstance(number, int) else 0)], [gradient])

    def update(self: Any, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """See ``mx.optimizer.Optimizer``; the gradients are reduced over all ranks first."""
        reduce(index, grad)
        optimizer.update(index, weight, grad, state)

    def update_multi_precision(self: Any, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """See ``mx.optimizer.Optimizer``; the gradients are reduced over all ranks first."""
        reduce(index, grad)
        optimizer.update_multi_precision(index, weight, grad, state)

    def reduce_ex(self: Any, protocol: Any) -> Any:
        return operator.getitem, ((optimizer,), 0)

    methods = {"update": update, "update_multi_precision": update_multi_precision, "__reduce_ex__": reduce_ex}
    return sharing(optimizer, {**methods, "_byteps_distributed": True, "_byteps_plain": optimizer})


def plain_optimizer(optimizer: Any) -> Any:
    """What ``DistributedOptimizer`` was given; any other optimizer as it is."""
    return optimizer._byteps_plain if is_distributed(optimizer) else optimizer
