"""Callbacks for ``model.fit``: equal variables at the start, average metrics, learning rates, checkpoints."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from byteps.adapters.current import current
from byteps.adapters.schedules import RateSchedule, decaying, warm_up
from byteps.keras.values import allreduce, broadcast_variables

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]

_log = logging.getLogger("byteps.keras")


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Overwrites the variables of the model and its optimizer with the root's before the first batch.

    Args:
        root_rank: The rank whose values all get.
        device: Accepted for Horovod scripts; means nothing.
        local_variables: Variables that each rank keeps for itself.
    """

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
        super().__init__()
        self._root_rank = root_rank
        self._local = {id(variable) for variable in local_variables or ()}

    def on_train_begin(self, logs: Any = None) -> None:
        """See ``keras.callbacks.Callback``."""
        optimizer = self.model.optimizer
        if not optimizer.built:
            optimizer.build(self.model.trainable_variables)
        variables = [*self.model.variables, *optimizer.variables]
        shared = [variable for variable in variables if id(variable) not in self._local]
        broadcast_variables(shared, self._root_rank)


class MetricAverageCallback(keras.callbacks.Callback):
    """Averages what an epoch has measured over all ranks. Give it before callbacks that read metrics.

    Args:
        device: Accepted for Horovod scripts; means nothing.
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """See ``keras.callbacks.Callback``; ``logs`` are changed in place."""
        if not logs:
            return
        names = sorted(logs)
        averages = allreduce(np.array([float(logs[name]) for name in names]))
        logs.update(zip(names, averages.tolist(), strict=True))


class LearningRateScheduleCallback(keras.callbacks.Callback):
    """Multiplies the learning rate, epoch by epoch or batch by batch.

    Args:
        initial_lr: The rate that the multiplier is applied to.
        multiplier: A function of the epoch, or a number that is applied once per epoch.
        start_epoch: The first epoch it applies to.
        end_epoch: The first epoch it does not apply to any more.
        staircase: Change the rate once per epoch; else with every batch, by fractions of epochs.
        momentum_correction: Scale the momentum by the change for one batch. Where the step is compiled
            (TensorFlow and JAX) the momentum is a constant of it, and this has no effect but a warning.
        steps_per_epoch: Batches in an epoch, where Keras does not know.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        self._schedule = RateSchedule(initial_lr, decaying(multiplier), start_epoch, end_epoch, staircase)
        self._corrects_momentum = momentum_correction
        self._steps = steps_per_epoch
        self._epoch = 0
        self._momentum: float | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """See ``keras.callbacks.Callback``."""
        self._steps = self._steps or self.params.get("steps")
        compiled = keras.backend.backend() != "torch" and not self.model.run_eagerly
        if self._corrects_momentum and compiled and getattr(self.model.optimizer, "momentum", 0):
            self._corrects_momentum = False
            _log.warning("momentum_correction has no effect: Keras compiles the momentum into the step")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """See ``keras.callbacks.Callback``."""
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """See ``keras.callbacks.Callback``."""
        rate = self._schedule.rate(self._epoch, batch, self._steps)
        if rate is not None:
            self._set(rate)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """See ``keras.callbacks.Callback``."""
        if self._momentum is not None:
            self.model.optimizer.momentum, self._momentum = self._momentum, None

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """See ``keras.callbacks.Callback``; the rate is among the ``logs`` as ``lr``."""
        if logs is not None:
            self._take_over()
            logs["lr"] = float(self.model.optimizer.learning_rate)

    def _set(self, rate: float) -> None:
        self._take_over()
        optimizer = self.model.optimizer
        before = float(optimizer.learning_rate)
        optimizer.learning_rate = rate
        momentum = getattr(optimizer, "momentum", None)
        if self._corrects_momentum and momentum and before:
            self._momentum, optimizer.momentum = momentum, momentum * rate / before

    def _take_over(self) -> None:
        """JAX trains on copies of the variables: bring these up to date, and have them copied again."""
        if keras.backend.backend() == "jax":
            self.model.jax_state_sync()


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from ``initial_lr / size()`` to ``initial_lr``, batch by batch.

    Args:
        initial_lr: The rate after warm-up; usually that of one process times ``size()``.
        warmup_epochs: How long it takes.
        momentum_correction, steps_per_epoch: As for ``LearningRateScheduleCallback``.
        verbose: Say so when it is done, if more than 0.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            # A batch counts once it is done: the last one of the warm-up has the full rate.
            return warm_up(current().size, warmup_epochs)(epoch + 1 / (self._steps or 1))

        super().__init__(
            initial_lr, multiplier, 0, warmup_epochs, False, momentum_correction, steps_per_epoch
        )
        self._last = warmup_epochs - 1
        self._verbose = verbose

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """See ``keras.callbacks.Callback``."""
        super().on_epoch_end(epoch, logs)
        if epoch == self._last and self._verbose > 0:
            rate = float(self.model.optimizer.learning_rate)
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.")


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """Saves the best model so far, on rank 0 only.

    Args:
        monitor, verbose, save_weights_only, mode, save_freq: As for ``keras.callbacks.ModelCheckpoint``.
        filepath: Where to; ``best.keras``, or ``best.weights.h5`` for weights only, if not given.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: str | int = "epoch",
        *,
        filepath: str | None = None,
    ) -> None:
        super().__init__(
            filepath or ("best.weights.h5" if save_weights_only else "best.keras"),
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )

    def _save_model(self, *args: Any, **options: Any) -> None:
        if current().rank == 0:
            super()._save_model(*args, **options)
