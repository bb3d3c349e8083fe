"""Who reads a parameter waits for its update: ``reads`` notices each read, ``unread`` finishes the update."""

from __future__ import annotations
