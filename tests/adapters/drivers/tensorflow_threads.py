"""TensorFlow with threads enough for ranks that are threads: each rank may hold one in a wait."""

from __future__ import annotations

import tensorflow as tf

__all__ = ["tf"]

tf.config.threading.set_inter_op_parallelism_threads(4)
