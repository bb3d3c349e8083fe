"""Horovod's reductions: ``allreduce`` with all its operators, Adasum among them, and what is built on it.

``grouped`` reduces tensors together or not at all, ``lists`` gradients that a caller has at hand,
``sync_batch_norm`` the statistics of batch normalisation.
"""

from __future__ import annotations
