"""``CrossBarrier``: loops whose next step begins while gradients of the last one are still on their way.

Within a ``tf.function`` TensorFlow itself keeps the order of what touches one variable. So the updates of the
last step stand at the beginning of the next: each waits for its own gradient, and each read of a variable
waits for that variable's update alone. The idea is ByteScheduler's (Peng et al., SOSP 2019).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from byteps.adapters.arrays import Array, ArrayRound, Round
from byteps.adapters.gradients import gradient_reducer
from byteps.errors import BytePSError
from byteps.tensorflow.compression import Compression
from byteps.tensorflow.cross_barrier.single_updates import SingleUpdates
from byteps.tensorflow.gradients import GradientReducer
from byteps.tensorflow.rounds import refuse_xla
from byteps.tensorflow.tensors import label_of

_EAGER = (
    "works within tf.function only: eager code runs line by line, so nothing could wait where a variable is "
    "read. Decorate the step by @tf.function, or use DistributedGradientTape"
)
_COMPRESSORS = (Compression.none, Compression.fp16, Compression.bf16)
_MAKE_ALL = (
    "build the model before CrossBarrier is made, by model.build(input_shape) or by calling it on a batch, "
    "and give all of model.trainable_variables"
)


class CrossBarrier:
    """An optimizer for a training step of your own, within a ``tf.function``.

    The step begins with ``update()`` and ends with ``apply(gradients)``. Before variables are read outside of
    the step (checkpoints, evaluation) call ``flush()``.

    Args:
        optimizer: A Keras optimizer, which is used as it is and keeps its state. It must treat each variable
            by itself: this is tried out on small copies.
        variables: What it trains, in forward order, all of them made: the first is the most urgent.
        options: ``compression``, ``op``, ``process_set``, ``session`` and others of
            ``adapters.gradients.gradient_reducer``. Sparse gradients are made dense.

    Raises:
        TypeError: ``optimizer`` is no Keras optimizer, or there is no such option.
        ValueError: There are no variables, the optimizer cannot update them one by one, or an option cannot
            work.
        NotInitialized: ``init()`` has not been called.
    """

    def __init__(self, optimizer: Any, variables: Iterable[Any], **options: Any) -> None:
        self._reducer = gradient_reducer(GradientReducer, **options, sparse_as_dense=True)
        if self._reducer.compression not in _COMPRESSORS:
            raise ValueError("CrossBarrier takes compression= only from byteps.tensorflow.Compression")
        self._variables = list(variables)
        if not self._variables:
            raise ValueError(f"there are no variables to train: {_MAKE_ALL}")
        self._updates = SingleUpdates(optimizer, self._variables)
        self._rounds: list[Round | None] = [None] * len(self._variables)
        self._reducer.rounds.session.unfinished.add(self)

    @property
    def optimizer(self) -> Any:
        """The optimizer as it was given; its state lacks what ``flush()`` would bring."""
        return self._updates.optimizer

    def __repr__(self) -> str:
        return "byteps.tensorflow.CrossBarrier, for a tf.function of your own, not for Keras's fit"

    @tf.autograph.experimental.do_not_convert
    def update(self) -> None:
        """Have each variable updated as soon as the last step's gradient of it is there.

        Raises:
            RuntimeError: Outside of a ``tf.function``, or in one that XLA compiles.
        """
        self._check_graph("update")
        if not self._reducer.rounds.sends:
            return
        waited: list[Any] = []
        for place, variable in enumerate(self._variables):
            with tf.control_dependencies(waited):
                given, gradient = self._wait_node(place, variable)
            waited = [given]
            tf.cond(
                given,
                lambda place=place, gradient=gradient: self._updates.update(place, gradient),
                lambda: tf.constant(False),
            )

    @tf.autograph.experimental.do_not_convert
    def apply(self, gradients: Sequence[Any]) -> None:
        """Begin to reduce the gradients of this step, which the next ``update()`` applies.

        Args:
            gradients: One for each variable, as a plain tape gives them; None where all ranks have none.

        Raises:
            RuntimeError: As for ``update``; when it runs, if the last step's were not applied.
            BytePSError: When it runs: the job failed, or ranks differ.
        """
        self._check_graph("apply")
        if len(gradients) != len(self._variables):
            raise ValueError(
                f"expected {len(self._variables)} gradients, one for each variable that CrossBarrier was "
                f"given, not {len(gradients)}: {_MAKE_ALL}"
            )
        if not self._reducer.rounds.sends:
            pairs = zip(gradients, self._variables, strict=True)
            used, variables = zip(*[pair for pair in pairs if pair[0] is not None], strict=True)
            self._updates.optimizer.apply(list(used), list(variables))
            return
        labels = [label_of(variable, place) for place, variable in enumerate(self._variables)]
        calls = self._reducer.rounds.calls([*zip(self._variables, labels, strict=True)])
        for place in reversed(range(len(calls))):  # as the backward pass computes
            if gradients[place] is not None:
                wire, _ = self._reducer.compression.compress(self._reducer.prepared(gradients[place]))
                self._start_node(place, calls[place], wire)
        self._updates.note_step()

    def flush(self) -> None:
        """Wait for all gradients and update all variables, outside of the step.

        Raises:
            RuntimeError: Within a ``tf.function``.
            BytePSError: The job failed.
        """
        if not tf.executing_eagerly():
            raise RuntimeError("flush() is for outside of a tf.function: within it call update()")
        for place, variable in enumerate(self._variables):
            begun, self._rounds[place] = self._rounds[place], None
            if begun is not None:
                self._updates.update(place, tf.cast(begun.wait()[0], variable.dtype))

    def finish_rounds(self) -> None:
        """See ``in_flight.Unfinished``."""
        try:
            self.flush()
        except (BytePSError, RuntimeError):  # who leaves while the job fails has nothing to update
            self._rounds = [None] * len(self._rounds)

    def _check_graph(self, call: str) -> None:
        if tf.executing_eagerly():
            raise RuntimeError(f"CrossBarrier.{call}() {_EAGER}")
        refuse_xla(tf.compat.v1.get_default_graph())

    def _wait_node(self, place: int, variable: Any) -> tuple[Any, Any]:
        wire, _ = self._reducer.compression.compress(tf.zeros([], variable.dtype))
        nothing = np.zeros([*variable.shape], wire.dtype.as_numpy_dtype)

        @tf.autograph.experimental.do_not_convert
        def wait() -> tuple[Any, Array]:
            begun, self._rounds[place] = self._rounds[place], None
            return (np.False_, nothing) if begun is None else (np.True_, begun.wait()[0])

        given, found = tf.numpy_function(wait, [], [tf.bool, wire.dtype], name="byteps_wait")
        given.set_shape([])
        found.set_shape(variable.shape)
        return given, tf.cast(found, variable.dtype)

    def _start_node(self, place: int, call: Any, wire: Any) -> None:
        @tf.autograph.experimental.do_not_convert
        def start(array: Array) -> Any:
            if self._rounds[place] is not None:
                raise RuntimeError(
                    f"{call.name}: the last step's gradients were not applied. Begin the step by update()"
                )
            self._rounds[place] = ArrayRound(call, array)
            return np.int64(0)

        tf.numpy_function(start, [wire], tf.int64, name="byteps_start")
