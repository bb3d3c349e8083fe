"""``DistributedTrainer``: Gluon's trainer on reduced gradients."""

from __future__ import annotations

import warnings
from typing import Any

import mxnet as mx

from byteps.adapters.gradients import gradient_prefix
from byteps.mxnet.compression import Compression
from byteps.mxnet.training.gradients import reducer_of
from byteps.mxnet.training.optimizer import plain_optimizer
from byteps.mxnet.training.parameters import broadcast_parameters


class DistributedTrainer(mx.gluon.Trainer):
    """A trainer whose gradients are averaged over all ranks before each update.

    ``step()`` does not wait: each update, and each layer of the next forward pass, waits within MXNet's
    engine for its own gradient. The root's parameters become everyone's, those whose initialisation is
    deferred when they get their shapes.

    Args:
        params: A dict or list of Gluon parameters in forward order, as ``net.collect_params()`` gives them:
            the first is the most urgent. Each on one device.
        optimizer: The name of an optimizer, or one.
        optimizer_params: For an optimizer by name.
        root_rank: The rank whose parameters all get.
        compression: One of ``Compression``, or a class like them.
        compression_params: BytePS's way to say ``{"fp16": True}``.
        prefix: Begins the names of the gradients; trainers are numbered if it is not given.
        options: ``op``, ``gradient_predivide_factor``, ``session`` and others of
            ``adapters.gradients.gradient_reducer``.

    Raises:
        TypeError: There is no such option.
        ValueError: An option cannot work, or a parameter is on several devices.
        NotInitialized: ``init()`` has not been called.
    """

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: Any = None,
        *,
        root_rank: int = 0,
        compression: Any = Compression.none,
        compression_params: dict[str, object] | None = None,
        prefix: str | None = None,
        **options: Any,
    ) -> None:
        if plain_optimizer(optimizer) is not optimizer:
            warnings.warn(
                "DistributedTrainer takes the plain optimizer out of a DistributedOptimizer", stacklevel=2
            )
            optimizer = plain_optimizer(optimizer)
        compression = _compression(compression, compression_params)
        self._reducer = reducer_of(compression=compression, **options)
        session = self._reducer.rounds.session
        self._prefix = gradient_prefix(session) if prefix is None else f"gradient.{prefix}"
        self._declared: frozenset[int] = frozenset()
        super().__init__(params, optimizer, optimizer_params, kvstore=None)
        self._check_devices()
        given = list(params.values() if hasattr(params, "values") else params)
        places = {id(parameter): place for place, parameter in enumerate(given)}
        self._order = sorted(range(len(self._params)), key=lambda number: places[id(self._params[number])])
        named = {f"{self._prefix}.{number}": parameter for number, parameter in enumerate(self._params)}
        broadcast_parameters(named, root_rank, session=session)

    def _check_devices(self) -> None:
        if len(self._contexts) > 1:
            raise ValueError(
                f"the parameters are on {len(self._contexts)} devices: start one process for each device, or "
                'use mx.gluon.Trainer(..., kvstore=mx.kv.create("byteps"), update_on_kvstore=False)'
            )

    def _allreduce_grads(self) -> None:
        """Called by ``step()`` and ``allreduce_grads()``."""
        used = [number for number in self._order if self._params[number].grad_req != "null"]
        places = {number: place for place, number in enumerate(self._order)}
        named = [(f"{self._prefix}.{number}", -places[number]) for number in used]
        gradients = [self._params[number].list_grad()[0] for number in used]
        new = not self._declared.issuperset(used)
        self._declared |= frozenset(used)
        self._reducer.begin(named, gradients, declare=new)


def _compression(compression: Any, settings: dict[str, object] | None) -> Any:
    """What BytePS's ``compression_params`` ask for.

    Raises:
        ValueError: Something else than fp16.
    """
    asked = {name for name, value in (settings or {}).items() if value}
    if asked - {"fp16"}:
        raise ValueError(
            f"compression_params: {', '.join(sorted(asked - {'fp16'}))} not there; what there is are "
            "compression=Compression.fp16 and compression_params={'fp16': True}"
        )
    return Compression.fp16 if asked else compression
