"""Batch normalisation over the batches of all ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from byteps.adapters.current import current
from byteps.adapters.reductions import Sum, sequence_number
from byteps.session import Session
from byteps.torch.reduction import Reduction


class SyncBatchNorm(_BatchNorm):
    """``torch.nn.BatchNorm1d/2d/3d`` whose mean and variance in training are those of all ranks' batches.

    On CPU and CUDA, with batches that may differ in size. Each forward and each backward pass reduces one
    vector of two values per channel, so all ranks must run the same layers in the same order.

    Args:
        num_features, eps, momentum, affine, track_running_stats: As for ``torch.nn.BatchNorm2d``.
        session: The session of ``init()`` if not given.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        *,
        session: Session | None = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self._session = session
        self._name = ""

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2 or input.size(1) != self.num_features:
            raise ValueError(
                f"SyncBatchNorm expects (batch, {self.num_features}, ...), got {tuple(input.shape)}"
            )

    def forward(self, input: Tensor) -> Tensor:
        """Normalise.

        Args:
            input: (batch, channels, ...), floating point.

        Raises:
            ValueError: The input has another number of channels.
            NotInitialized: ``init()`` has not been called.
        """
        self._check_input_dim(input)
        session = self._session or current()
        if session.size == 1 or not (self.training or self.running_mean is None):
            return super().forward(input)
        self._name = self._name or f"sync_batch_norm.{sequence_number(session, 'sync_batch_norm')}"
        normalized: Tensor
        normalized, mean, variance, count = _Normalize.apply(  # type: ignore[no-untyped-call]
            input, self.weight, self.bias, self.eps, Reduction(session, self._name, Sum)
        )
        self._track(mean, variance * (count / (count - 1).clamp(min=1)))
        return normalized

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor) -> None:
        """Follow the mean and the unbiased variance."""
        if not self.training or self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        share = self.momentum if self.momentum is not None else 1.0 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(variance.to(self.running_var.dtype), share)


class _Normalize(torch.autograd.Function):
    """Sums are taken in float64: the variance of values far from zero needs the digits."""

    @staticmethod
    def forward(
        ctx: Any, input: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, reduction: Reduction
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        channels = input.size(1)
        own = float(input.numel() // channels)
        if own:
            variance, mean = torch.var_mean(input.float(), _dimensions(input), correction=0)
        else:
            variance = mean = torch.zeros(channels, device=input.device)
        mean, variance = mean.double(), variance.double()
        sums = torch.cat([mean.new_tensor([own]), mean * own, (variance + mean * mean) * own])
        reduction.in_place(sums).synchronize()
        count = sums[0].clamp(min=1)
        mean = sums[1 : channels + 1] / count
        variance = (sums[channels + 1 :] / count - mean * mean).clamp(min=0)
        scale = (variance + eps).rsqrt()
        normalized = (input - _shaped(mean, input)) * _shaped(scale, input)
        ctx.save_for_backward(normalized, weight, scale, count)
        ctx.reduction, ctx.bias_dtype = reduction, None if bias is None else bias.dtype
        output = normalized if weight is None else normalized * _shaped(weight, input)
        output = output if bias is None else output + _shaped(bias, input)
        ctx.mark_non_differentiable(mean, variance, count)
        return output.to(input.dtype), mean, variance, count

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        normalized, weight, scale, count = ctx.saved_tensors
        gradient = gradients[0]
        dimensions = _dimensions(gradient)
        own = torch.cat(
            [
                gradient.sum(dimensions, dtype=torch.float64),
                (gradient * normalized).sum(dimensions, dtype=torch.float64),
            ]
        )
        channels = gradient.size(1)
        sums = own.clone()
        reduction: Reduction = ctx.reduction
        reduction.of_gradient().in_place(sums).synchronize()
        mean, product = _shaped(sums[:channels] / count, gradient), _shaped(sums[channels:] / count, gradient)
        factor = _shaped(scale if weight is None else scale * weight, gradient)
        to_input = ((gradient - mean - normalized * product) * factor).to(gradient.dtype)
        to_weight = None if weight is None else own[channels:].to(weight.dtype)
        to_bias = None if ctx.bias_dtype is None else own[:channels].to(ctx.bias_dtype)
        return to_input, to_weight, to_bias, None, None


def _dimensions(tensor: Tensor) -> list[int]:
    """All but the channels."""
    return [0, *range(2, tensor.dim())]


def _shaped(values: Tensor, like: Tensor) -> Tensor:
    """Values by channel, to be combined with a batch."""
    dtype = torch.float32 if like.dtype in (torch.float16, torch.bfloat16) else like.dtype
    return values.to(dtype).reshape(1, -1, *[1] * (like.dim() - 2))
