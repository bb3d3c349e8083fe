"""``init``: joins the job, or under torchrun starts it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from byteps.adapters import basics
from byteps.adapters.process_sets import ProcessSet
from byteps.communicator import Collectives, Meeting
from byteps.config import Config

if TYPE_CHECKING:
    from byteps.communicator.node_collectives import NodeCollectives, NodeMeeting


def init(
    lazy: bool = True,
    *,
    comm: object = None,
    process_sets: Sequence[ProcessSet] | str | None = None,
    **settings: object,
) -> None:
    """Join the job; under torchrun, start it. Does nothing if this process has joined already.

    Args:
        lazy: Accepted for BytePS scripts; means nothing.
        comm: Accepted for Horovod scripts, which may pass ``None``: all ranks take part.
        process_sets: Process sets to register, the same on all ranks; "dynamic" means nothing, as sets can
            always be added later.
        settings: Fields of ``byteps.config.Config`` by name, for example ``partition_bytes=1 << 20``. What is
            not given comes from the environment, ``byteps.toml`` or the defaults.

    Raises:
        ConfigError: A setting cannot work.
        JoinError: The job refused this process, or was not complete in time.
        HandshakeError: The coordinator belongs to another job, or tokens differ.
        ValueError: ``comm`` is given, or a process set cannot be; see ``add_process_set``.
    """
    basics.begin(_discover, _engine, comm, process_sets, settings, _node_engine)


def _engine(meeting: Meeting) -> Collectives:
    from byteps.torch.distributed.engine import engine  # for the same reason

    return engine(meeting)


def _node_engine(meeting: NodeMeeting) -> NodeCollectives | None:
    from byteps.torch.node_sums.engine import node_engine

    return node_engine(meeting)


def _discover(config: Config) -> tuple[Config, Callable[[], None]]:
    from byteps.torch.launching.torchrun import (
        discover,  # needs torch.distributed, which takes time to import
    )

    return discover(config)
