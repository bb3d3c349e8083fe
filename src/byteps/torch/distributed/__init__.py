"""``torch.distributed`` as the engine of all-reduce: ``communicator = allreduce``."""

from __future__ import annotations
