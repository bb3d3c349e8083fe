"""``horovod.common``: what all of Horovod's frameworks share."""

from __future__ import annotations
