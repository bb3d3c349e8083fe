"""Training with Gluon (``trainer``), ``Module`` (``optimizer``) and KVStore (``store``).

They stand on ``gradients``; ``parameters`` become the root's first.
"""

from __future__ import annotations
