"""All-reduce in two halves, by hand over gloo, as DeAR does it (Zhang et al., arXiv 2302.12445).

A bucket of gradients is reduced and scattered behind the backward pass, in the order in which buckets fill,
and gathered before the next forward pass reads its parameters. Gloo's own reduce_scatter sends as much as a
whole all-reduce, so it is an all-to-all and a sum here, which send half.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Module, Parameter

from benchmarks.emulated.model import LEARNING_RATE
from benchmarks.emulated.systems import Training


class Bucket:
    """Parameters whose gradients travel together.

    Args:
        parameters: Neighbours in the backward pass.
    """

    def __init__(self, parameters: list[Parameter]) -> None:
        self.parameters = parameters
        self._size = dist.get_world_size()
        elements = sum(parameter.numel() for parameter in parameters)
        chunk = -(-elements // self._size)
        self._flat = torch.zeros(chunk * self._size)
        self._theirs = torch.zeros(chunk * self._size)
        self._waiting_for = len(parameters)
        self._scattered: Any = None
        self._gathered: Any = None
        for parameter, gradient in self._gradients():
            parameter.register_post_accumulate_grad_hook(lambda p, to=gradient: self._take(p, to))

    def gather(self) -> None:
        """Wait for the half that sums, then begin the other half."""
        self._scattered.wait()
        own = self._theirs.view(self._size, -1).sum(0) / self._size
        self._gathered = dist.all_gather_single(self._flat, own, async_op=True)

    def update(self) -> None:
        """Wait for the averages, if they are on their way, and update the parameters."""
        if self._gathered is None:
            return
        self._gathered.wait()
        self._gathered = None
        with torch.no_grad():
            for parameter, gradient in self._gradients():
                parameter.add_(gradient, alpha=-LEARNING_RATE)

    def _take(self, parameter: Tensor, gradient: Tensor) -> None:
        assert parameter.grad is not None
        gradient.copy_(parameter.grad)
        parameter.grad = None
        self._waiting_for -= 1
        if self._waiting_for == 0:
            self._waiting_for = len(self.parameters)
            self._scattered = dist.all_to_all_single(self._theirs, self._flat, async_op=True)

    def _gradients(self) -> Iterator[tuple[Parameter, Tensor]]:
        """Each parameter and where its gradient is."""
        begin = 0
        for parameter in self.parameters:
            end = begin + parameter.numel()
            yield parameter, self._flat[begin:end].view_as(parameter)
            begin = end


def buckets(model: Module, limit_bytes: int) -> list[Bucket]:
    """Buckets in forward order, filled from the last parameter on; each has at least one."""
    groups: list[list[Parameter]] = []
    left = 0
    for parameter in reversed(list(model.parameters())):
        if not groups or parameter.nbytes > left:
            groups.append([])
            left = limit_bytes
        groups[-1].append(parameter)
        left -= parameter.nbytes
    return [Bucket(group) for group in reversed(groups)]


def split(model: Module, limit_bytes: int) -> Training:
    """Train so.

    Args:
        model: Each of its modules waits, before its forward pass, for the buckets of its own parameters.
        limit_bytes: Of a bucket, unless one gradient is larger.
    """
    found = buckets(model, limit_bytes)
    of = {parameter: bucket for bucket in found for parameter in bucket.parameters}

    def wait(own: Sequence[Bucket]) -> None:
        for bucket in own:
            bucket.update()

    for module in model.modules():
        own = list(dict.fromkeys(of[parameter] for parameter in module.parameters(recurse=False)))
        module.register_forward_pre_hook(lambda *_, own=own: wait(own))

    def step() -> None:
        for bucket in found:
            bucket.gather()

    return Training(model, lambda: None, step, lambda: wait(found))
