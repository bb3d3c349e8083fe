"""Steps of an unmodified optimizer over some of its parameters: ``views``, and which optimizers allow it."""

from __future__ import annotations
