"""``horovod.common.process_sets``."""

from __future__ import annotations

from byteps.adapters.process_sets import ProcessSet as ProcessSet
from byteps.adapters.process_sets import add_process_set as add_process_set
from byteps.adapters.process_sets import global_process_set as global_process_set
from byteps.adapters.process_sets import remove_process_set as remove_process_set
