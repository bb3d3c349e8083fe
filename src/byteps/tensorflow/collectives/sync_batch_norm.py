"""``SyncBatchNormalization``: a Keras layer that normalises over the batches of all ranks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from byteps.adapters.reductions import Sum
from byteps.session import Session
from byteps.tensorflow.ops import push_pull


class SyncBatchNormalization(tf.keras.layers.BatchNormalization):
    """``tf.keras.layers.BatchNormalization`` over the values of all ranks, whose batches may differ in size.

    Two small rounds in a forward pass in training and two in its backward pass; ranks run the same layers in
    the same order.

    Args:
        fused: Accepted for Horovod scripts; must be False.
        session: The session of ``init()`` if not given.
        options: As for the plain layer.

    Raises:
        ValueError: ``fused`` is True.
    """

    def __init__(self, fused: bool = False, *, session: Session | None = None, **options: Any) -> None:
        if fused:
            raise ValueError("SyncBatchNormalization does not support fused=True")
        super().__init__(**options)
        self._session = session

    def _moments(self, inputs: Any, mask: Any) -> tuple[Any, Any]:
        if mask is not None:
            raise ValueError("SyncBatchNormalization does not support masks: give it inputs without one")
        axes = self._reduction_axes
        count = tf.cast(tf.size(inputs) / inputs.shape[self.axis], inputs.dtype)
        sums = tf.concat([tf.reduce_sum(inputs, axes), [count]], 0)
        totals = push_pull(sums, op=Sum, session=self._session)
        mean = totals[:-1] / totals[-1]
        shape = [1] * inputs.shape.rank
        shape[self.axis] = -1
        deviations = tf.reduce_sum(tf.square(inputs - tf.reshape(mean, shape)), axes)
        return mean, push_pull(deviations, op=Sum, session=self._session) / totals[-1]
