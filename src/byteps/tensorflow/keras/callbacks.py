"""``byteps.keras.callbacks`` under the name that scripts for ``tf.keras`` import."""

from __future__ import annotations

from byteps.keras import callbacks
from byteps.keras.callbacks import *

__all__ = [*callbacks.__all__]
