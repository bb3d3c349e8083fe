"""``horovod.tensorflow.functions``: objects are pickled, as Horovod scripts expect."""

from __future__ import annotations

from functools import partial
from typing import Final

from byteps.tensorflow import functions
from byteps.tensorflow.functions import broadcast_ as broadcast_
from byteps.tensorflow.functions import broadcast_global_variables as broadcast_global_variables
from byteps.tensorflow.functions import broadcast_variables as broadcast_variables

broadcast_object: Final = partial(functions.broadcast_object, allow_pickle=True)
broadcast_object_fn: Final = partial(functions.broadcast_object_fn, allow_pickle=True)
allgather_object: Final = partial(functions.allgather_object, allow_pickle=True)
