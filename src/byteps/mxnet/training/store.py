"""A KVStore, for ``mx.gluon.Trainer(..., kvstore="dist_byteps", update_on_kvstore=False)``."""

from __future__ import annotations

from functools import partial
from typing import Any, NoReturn

import mxnet as mx

from byteps.adapters.calls import copy_call, reduction_call
from byteps.adapters.current import current
from byteps.adapters.reductions import Sum
from byteps.mxnet.rounds import begin
from byteps.mxnet.tensors import check
from byteps.session import Session


@mx.kvstore.KVStoreBase.register
class BytePS(mx.kvstore.KVStoreBase):
    """Sums over all ranks, and over the devices of each: ``mx.kv.create("byteps")``.

    As with MXNet's own distributed stores, gradients are added: call ``trainer.step()`` with the number of
    samples of all ranks.

    Args:
        session: The session of ``init()`` if not given.

    Raises:
        NotInitialized: ``init()`` has not been called.
    """

    def __init__(self, session: Session | None = None) -> None:
        self._session = current() if session is None else session

    def broadcast(self, key: str | int, value: Any, out: Any, priority: int = 0) -> None:
        """Give all ranks rank 0's array; see ``KVStoreBase``."""
        targets = _listed(out)
        if value is not targets[0]:
            value.copyto(targets[0])
        begin(copy_call(partial(check, targets[0]), 0, None, self._session), targets[0])
        _copy_to_others(targets)

    def pushpull(self, key: str | int, value: Any, out: Any = None, priority: int = 0) -> None:
        """Add an array over all ranks; see ``KVStoreBase``.

        Args:
            key: Identifies the array across ranks.
            value: An array, or one of each device.
            out: Gets the sum: an array, or one for each device; ``value`` if not given.
            priority: Higher numbers are sent first.
        """
        values = _listed(value)
        targets = values if out is None else _listed(out)
        total = values[0]
        if len(values) > 1:
            total = mx.nd.add_n(*[each.as_in_context(total.context) for each in values])
        call = reduction_call(
            partial(check, total), None, Sum, f"kvstore.{key}", priority=priority, session=self._session
        )
        if total is not targets[0]:
            total.copyto(targets[0])
        begin(call, targets[0])
        _copy_to_others(targets)

    @staticmethod
    def is_capable(capability: str) -> bool:
        """False: servers run no optimizers."""
        return False

    def set_optimizer(self, optimizer: Any) -> NoReturn:
        """Raises ValueError: servers run no optimizers."""
        raise ValueError("servers add and run no optimizers: pass update_on_kvstore=False to the trainer")

    def set_gradient_compression(self, compression_params: Any) -> NoReturn:
        """Raises ValueError: it is ``DistributedTrainer`` that compresses."""
        raise ValueError(
            "this store does not compress: use DistributedTrainer(..., compression=Compression.fp16)"
        )

    @property
    def type(self) -> str:
        """What MXNet calls it."""
        return "byteps"

    @property
    def rank(self) -> int:
        """This process's number in the job."""
        return self._session.rank

    @property
    def num_workers(self) -> int:
        """How many training processes the job has."""
        return self._session.size


@mx.kvstore.KVStoreBase.register
class Dist_BytePS(BytePS):  # noqa: N801  (MXNet makes the store's name of it)
    """The same by a name that MXNet does not pass over where a process has one device."""


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _copy_to_others(targets: list[Any]) -> None:
    for other in targets[1:]:
        targets[0].copyto(other)
