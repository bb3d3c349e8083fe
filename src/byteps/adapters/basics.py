"""The public calls that touch no tensor; every adapter exports them."""

from __future__ import annotations

from byteps.adapters import current


def shutdown() -> None:
    """Leave the job in order. Harmless when not initialised; ``init()`` works again afterwards."""
    current.shutdown()


def is_initialized() -> bool:
    """Whether ``init()`` was called and ``shutdown()`` was not."""
    return current.is_initialized()


def rank() -> int:
    """This process's number in the job, from 0.

    Raises:
        NotInitialized: ``init()`` has not been called.
    """
    return current.current().rank


def size() -> int:
    """How many training processes the job has.

    Raises:
        NotInitialized: ``init()`` has not been called.
    """
    return current.current().size


def local_rank() -> int:
    """This process's number on its node, from 0.

    Raises:
        NotInitialized: ``init()`` has not been called.
    """
    return current.current().local_rank


def local_size() -> int:
    """How many training processes this node has.

    Raises:
        NotInitialized: ``init()`` has not been called.
    """
    return current.current().local_size


def barrier() -> None:
    """Wait until every rank has called this.

    Raises:
        NotInitialized: ``init()`` has not been called.
        PeerLost: A member of the job died.
    """
    current.current().barrier()


def get_pushpull_speed() -> tuple[int, float]:
    """How fast this process moves tensors.

    Returns:
        When this was measured (milliseconds since the epoch) and the speed (MB/s).

    Raises:
        NotInitialized: ``init()`` has not been called.
    """
    return current.current().pushpull_speed()
