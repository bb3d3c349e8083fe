"""``DistributedDataParallel``: a module whose gradients are averages over all ranks after ``backward()``."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Variable
from torch.nn import Module

from byteps.adapters.current import current
from byteps.adapters.gradients import gradient_prefix
from byteps.adapters.reductions import Average
from byteps.dtypes import ReduceOp
from byteps.session import Session
from byteps.torch.compression import Compression, Compressor
from byteps.torch.functions.broadcasting import Copy
from byteps.torch.functions.parameters import broadcast_parameters
from byteps.torch.gradients.reducer import GradientReducer
from byteps.torch.gradients.slots import Exchange

__all__ = ["DistributedDataParallel"]

_ADVICE = (
    "The number of times that one backward pass computes each gradient must not grow; run passes that only "
    "accumulate within no_sync()."
)


class DistributedDataParallel(Module):
    """Wraps a module for training on all ranks, with any optimizer.

    The root's parameters and buffers are given to all ranks now. Gradients are sent while a backward pass
    runs and are the averages when ``backward()`` returns. A parameter that no rank used keeps its gradient
    None; one that only other ranks used gets their average.

    Args:
        module: The module. It stays available as the attribute ``module``.
        device_ids: None, or a list of the one device that holds the module.
        broadcast_buffers: Give rank 0's buffers to all ranks before each forward pass in training mode.
        compression: One of ``Compression``, or a class like them.
        find_unused_parameters: Accepted for torch scripts; unused parameters are always found.
        sparse_as_dense: Make sparse gradients dense instead of refusing them.
        session: The session of ``init()`` if not given.

    Raises:
        TypeError: ``module`` is no module.
        ValueError: More than one device, or a parameter that cannot be reduced.
        NotInitialized: ``init()`` has not been called.
        DeclarationError: Ranks differ in a parameter's shape or dtype.
    """

    def __init__(
        self,
        module: Module,
        device_ids: Sequence[int | torch.device] | None = None,
        broadcast_buffers: bool = True,
        compression: type[Compressor] = Compression.none,
        find_unused_parameters: bool = False,
        *,
        sparse_as_dense: bool = False,
        session: Session | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(module, Module):
            raise TypeError(f"expected a torch.nn.Module, got {type(module).__name__}")
        if device_ids is not None and len(device_ids) != 1:
            raise ValueError(
                f"device_ids={list(device_ids)}: each process trains on one device; pass one or None"
            )
        self.module = module
        self.broadcast_buffers = broadcast_buffers
        self._session = current() if session is None else session
        self._prefix = gradient_prefix(self._session)
        self._reducer: GradientReducer | None = None
        self._synchronizes = True
        self._backward_pass = -1
        if self._session.size > 1 or self._session.config.force_distributed:
            tensors = [*module.named_parameters(), *module.named_buffers()]
            broadcast_parameters(tensors, 0, f"{self._prefix}.", session=self._session)
            exchange = Exchange(
                self._session, self._prefix, Average, (1.0, 1.0), compression, sparse_as_dense, _ADVICE
            )
            self._reducer = GradientReducer(exchange, module.named_parameters())
            self._reducer.enabled = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module."""
        if self._reducer is None:
            return self.module(*args, **kwargs)
        if self.training and self.broadcast_buffers and self._synchronizes:
            self._copy_buffers()
        output = self.module(*args, **kwargs)
        if torch.is_grad_enabled() and self._synchronizes:
            self._watch(output, self._reducer)
        return output

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within this, forward and backward passes only accumulate gradients on each rank.

        The first backward pass after it sends the sums.
        """
        before, self._synchronizes = self._synchronizes, False
        if self._reducer is not None:
            self._reducer.enabled = False
        try:
            yield
        finally:
            self._synchronizes = before

    def synchronize(self) -> None:
        """Accepted for BytePS scripts: gradients are averaged already when ``backward()`` returns."""

    def _copy_buffers(self) -> None:
        """Give rank 0's buffers to all ranks."""
        handles = [
            Copy(self._session, f"{self._prefix}@{name}", ReduceOp.COPY, root=0).in_place(buffer)
            for name, buffer in self.module.named_buffers()
        ]
        for handle in handles:
            handle.synchronize()

    def _watch(self, output: object, reducer: GradientReducer) -> None:
        """Have the next backward pass through ``output`` reduce the gradients when it ends.

        A hook on the output runs before any hook of a parameter and, unlike those, never within the nested
        backward pass of an activation checkpoint. For outputs of unknown types the parameters' hooks must do.
        """
        tensors = [tensor for tensor in _tensors_in(output) if tensor.requires_grad]
        for tensor in tensors:
            tensor.register_hook(lambda gradient: self._begin())
        reducer.started = None if tensors else _calling(weakref.WeakMethod(self._begin))

    def _begin(self) -> None:
        """At the start of a backward pass."""
        assert self._reducer is not None
        running = torch._C._current_graph_task_id()
        if running == self._backward_pass or not self._synchronizes:
            return
        self._backward_pass = running
        if self._reducer.pending:  # the last backward pass ended in an error
            self._reducer.discard()
        self._reducer.enabled = True
        self._reducer.watch.begin()
        Variable._execution_engine.queue_callback(self._end)

    def _end(self) -> None:
        """At the end of a backward pass."""
        assert self._reducer is not None
        self._reducer.enabled = False
        self._reducer.close_round()


def _calling(method: weakref.WeakMethod[Callable[[], None]]) -> Callable[[], None]:
    """Calls a method as long as its object lives."""

    def call() -> None:
        bound = method()
        if bound is not None:
            bound()

    return call


def _tensors_in(output: object) -> Iterator[Tensor]:
    """Tensors of a module's output: itself, or within tuples, lists and mappings."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        yield from (tensor for value in output.values() for tensor in _tensors_in(value))
    elif isinstance(output, tuple | list):
        yield from (tensor for value in output for tensor in _tensors_in(value))
