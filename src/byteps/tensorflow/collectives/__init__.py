"""Horovod's collectives: ``allreduce`` with all its operators, grouped too; rows that move between ranks.

``queries`` are ranks and sizes as tensors, ``sync_batch_norm`` a layer that is built on all this.
"""

from __future__ import annotations
