"""The only module that touches the process environment."""

from __future__ import annotations

import os
from collections.abc import Mapping


def environment() -> Mapping[str, str]:
    """A copy of this process's environment as it is now."""
    return dict(os.environ)


def child_environment(overrides: Mapping[str, str]) -> dict[str, str]:
    """The environment for a process to start: this one's, with ``overrides`` on top."""
    return {**os.environ, **overrides}


def visible_devices(environ: Mapping[str, str] | None = None) -> int:
    """How many GPUs ``NVIDIA_VISIBLE_DEVICES`` lists, at least 1: BytePS starts one worker for each."""
    listed = (os.environ if environ is None else environ).get("NVIDIA_VISIBLE_DEVICES", "")
    return max(1, sum(bool(device.strip()) for device in listed.split(",")))
