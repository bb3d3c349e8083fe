"""Gradients of torch's own DistributedDataParallel over byteps: ``register_comm_hook(None, ddp_hook)``.

torch collects gradients in buckets and changes their layout after the first step, so each gradient is sent
under its parameter's name. torch waits for a bucket by a future. One thread for each state completes them;
the native core does not, as that takes the interpreter's lock, for which no I/O thread should wait.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, ParamSpec, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.futures import Future
from torch.nn import Module
from torch.utils.weak import WeakIdKeyDictionary

from byteps.adapters.current import current, kept
from byteps.adapters.gradients import gradient_prefix
from byteps.adapters.reductions import Average
from byteps.session import Session
from byteps.torch.sending import Stagers, start
from byteps.torch.tensors import spec_of
from byteps.torch.transfers import Pending

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket

    _Queue: TypeAlias = SimpleQueue[Future[None] | None]

P = ParamSpec("P")
ResultT = TypeVar("ResultT")


class DDPState:
    """What ``ddp_hook`` knows about one model. Make the states of several models in one order on all ranks.

    Args:
        model: The model, wrapped or not: its parameters' names are used, in errors too. Without it,
            parameters are numbered in the order in which torch first reduces them: the same on all ranks.
        session: The session of ``init()`` if not given.

    Raises:
        NotInitialized: ``init()`` has not been called.
    """

    def __init__(self, model: Module | None = None, *, session: Session | None = None) -> None:
        self._session = current() if session is None else session
        self._prefix = gradient_prefix(self._session)
        self._names = WeakIdKeyDictionary()  # by parameter
        self._numbers = itertools.count()
        self._declared: set[str] = set()
        self._ranks: int | None = None
        self._stagers = Stagers()
        self._begun: _Queue = SimpleQueue()
        if isinstance(model, torch.nn.parallel.DistributedDataParallel):
            self._ranks = model.process_group.size()
            model = model.module
        for name, parameter in model.named_parameters() if model is not None else ():
            self._names[parameter] = name
        threading.Thread(target=_complete, args=[self._begun], name="byteps-ddp", daemon=True).start()
        weakref.finalize(self, self._begun.put, None)
        self._session.on_shutdown.append(partial(self._begun.put, None))

    def reduce(self, bucket: GradBucket) -> Future[Tensor]:
        """See ``ddp_hook``."""
        self._check_ranks()
        memory = bucket.buffer()
        gradients = bucket.gradients() or [memory]  # a sparse one, to be refused
        names = [f"{self._prefix}.{self._name(parameter)}" for parameter in bucket.parameters()]
        specs = [spec_of(gradient, name, Average) for name, gradient in zip(names, gradients, strict=True)]
        if new := [spec for spec in specs if spec.name not in self._declared]:
            self._session.declare(new)
            self._declared.update(spec.name for spec in new)
        # torch fills its buckets from the last layer to the first: the later one, the sooner it is needed.
        urgency, stager = bucket.index(), self._stagers.of(memory)
        pending = [
            start(self._session, spec, gradient, gradient, urgency, stager)
            for spec, gradient in zip(specs, gradients, strict=True)
        ]
        begun: Future[None] = Future(devices=[memory.device] if memory.is_cuda else None)
        result = begun.then(_receiving(pending, memory))
        self._begun.put(begun)
        return result

    def _name(self, parameter: Tensor) -> str:
        if parameter not in self._names:
            self._names[parameter] = f"noname.{next(self._numbers)}"
        return str(self._names[parameter])

    def _check_ranks(self) -> None:
        if self._ranks is None:
            self._ranks = torch.distributed.get_world_size()
        if self._ranks != self._session.size:
            raise ValueError(
                f"DistributedDataParallel has {self._ranks} ranks and byteps {self._session.size}: gradients "
                "cannot be averaged over both. If its process group is not the default one, pass "
                "DDPState(model=ddp_model) as the state"
            )


def _without_annotations(hook: Callable[P, ResultT]) -> Callable[P, ResultT]:
    """``register_comm_hook`` compares them with classes, and here they are strings."""
    hook.__annotations__ = {}
    return hook


@_without_annotations
def ddp_hook(state: DDPState | None, bucket: GradBucket) -> Future[Tensor]:
    """Average a bucket over all ranks; for ``register_comm_hook`` of torch's ``DistributedDataParallel``.

    Each gradient is a tensor of its own, named by its parameter. Buckets nearer to the model's input are more
    urgent. ``backward()`` still returns only when all buckets are done: that is how torch waits for a hook.

    Args:
        state: A ``DDPState``; None for one that all models of the session of ``init()`` share.
        bucket: Gradients that torch has collected: float64, float32, float16 or bfloat16, dense.

    Returns:
        A future of the bucket's memory, once it holds the averages. If the job fails it holds the error, and
        ``backward()`` raises a ``RuntimeError`` with its text: torch keeps no more of it.

    Raises:
        NotInitialized: ``init()`` has not been called.
        ValueError: A gradient is sparse, or torch has another number of ranks.
        DeclarationError: Ranks differ in a gradient's shape or dtype.
        BytePSError: The job has failed.
    """
    return (kept(_shared) if state is None else state).reduce(bucket)


def _shared(session: Session) -> DDPState:
    return DDPState(session=session)


def _receiving(pending: Sequence[Pending], memory: Tensor) -> Callable[[Future[None]], Tensor]:
    def receive(begun: Future[None]) -> Tensor:
        for one in pending:
            one.finish()
        return memory

    return receive


def _complete(begun: _Queue) -> None:
    """Complete futures in the order in which torch waits for them, which is the one in which they began.

    What was attached to each waits for its bucket's results, and its error becomes that of the future which
    torch has.
    """
    while (future := begun.get()) is not None:
        future.set_result(None)
