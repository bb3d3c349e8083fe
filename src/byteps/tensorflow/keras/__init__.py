"""``byteps.keras`` under the name that scripts for ``tf.keras`` import: since Keras 3 they are the same."""

from __future__ import annotations

from byteps import keras
from byteps.adapters.exports import *
from byteps.adapters.process_sets import *
from byteps.keras import *

__all__ = [*keras.__all__]
