"""``SyncBatchNorm``, under the module path that scripts import it from."""

from __future__ import annotations

from byteps.torch.reductions.sync_batch_norm import SyncBatchNorm

__all__ = ["SyncBatchNorm"]
