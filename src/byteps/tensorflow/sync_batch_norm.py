"""``SyncBatchNormalization``, under the module path that scripts import it from."""

from __future__ import annotations

from byteps.tensorflow.collectives.sync_batch_norm import SyncBatchNormalization

__all__ = ["SyncBatchNormalization"]
