"""Gradients of TensorFlow variables, dense or ``IndexedSlices``, reduced over all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from byteps.adapters import gradients as shared
from byteps.adapters.calls import Call
from byteps.tensorflow.rounds import carry_out, dense, sparse
from byteps.tensorflow.tensors import label_of


class GradientReducer(shared.GradientReducer):
    """See ``adapters.gradients``. In a graph, failures are raised when it runs; XLA is refused at once."""

    @tf.autograph.experimental.do_not_convert
    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """See ``adapters.gradients``."""
        return super().reduce(gradients, variables)

    def label(self, variable: Any, position: int) -> str:
        """See ``adapters.gradients``."""
        return label_of(variable, position)

    def prepared(self, gradient: Any) -> Any:
        """See ``adapters.gradients``."""
        if isinstance(gradient, tf.IndexedSlices) and not self.sparse_as_dense:
            return gradient
        return tf.convert_to_tensor(gradient)

    def scaled(self, gradient: Any, factor: float) -> Any:
        """See ``adapters.gradients``."""
        if isinstance(gradient, tf.IndexedSlices):
            return tf.IndexedSlices(gradient.values * factor, gradient.indices, gradient.dense_shape)
        return gradient * factor

    def is_sparse(self, gradient: Any) -> bool:
        """See ``adapters.gradients``."""
        return isinstance(gradient, tf.IndexedSlices)

    def carry_out(self, calls: Sequence[Call], gradients: Sequence[Any]) -> list[Any]:
        """See ``adapters.gradients``."""
        items = [
            sparse(call, gradient) if self.is_sparse(gradient) else dense(call, gradient)
            for call, gradient in zip(calls, gradients, strict=True)
        ]
        return [
            tf.IndexedSlices(*result, gradient.dense_shape) if self.is_sparse(gradient) else result[0]
            for gradient, result in zip(gradients, carry_out(items), strict=True)
        ]
