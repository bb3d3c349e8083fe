"""For commands that take a worker's place in a job: where that job's coordinator is."""

from __future__ import annotations

from collections.abc import Callable

from byteps.config import Config


def find_job(config: Config) -> tuple[Config, Callable[[], None]]:
    """Under torchrun the coordinator has to be started and found first; else the settings name it.

    Returns:
        The settings, complete, and what to call when this process has left the job or could not join it.

    Raises:
        ConfigError, JoinError: why it cannot be found.
    """
    if config.launcher != "torchrun" or config.coordinator:
        return config, lambda: None
    from byteps.torch.launching.torchrun import discover  # torch takes seconds to import

    return discover(config)
