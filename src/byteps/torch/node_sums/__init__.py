"""Sums among the ranks of a node, on their GPUs or on the host, before anything leaves it."""

from __future__ import annotations
