"""The public calls that touch no tensor; every adapter exports them."""

from __future__ import annotations

from byteps.adapters import current
from byteps.adapters.process_sets import ProcessSet, group_of, wait_for_members
from byteps.session import Session


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


def cross_rank() -> int:
    """This node's place among the nodes that have a process of this local rank, from 0.

    Raises:
        NotInitialized: ``init()`` has not been called.
    """
    return current.current().cross_rank


def cross_size() -> int:
    """How many nodes have a process of this local rank.

    Raises:
        NotInitialized: ``init()`` has not been called.
    """
    return current.current().cross_size


def is_homogeneous() -> bool:
    """Whether all nodes have equally many training processes.

    Raises:
        NotInitialized: ``init()`` has not been called.
    """
    return current.current().homogeneous


def barrier(process_set: ProcessSet | None = None) -> None:
    """Wait until every rank has called this.

    Args:
        process_set: The ranks to wait for; all if not given.

    Raises:
        NotInitialized: ``init()`` has not been called.
        PeerLost: A member of the job died.
    """
    group = group_of(process_set, None)
    if group.members:
        wait_for_members(group)
    else:
        group.session.barrier()


def join(device: int = -1, *, session: Session | None = None) -> int:
    """Say that this rank has no more data, for example because others have more batches.

    Until all ranks have called this, this rank takes part in what the others do with nothing to add: zeros in
    sums and averages (which still divide by the number of all ranks), no rows in ``allgather``. It can be no
    root of a broadcast. All handles of this rank must have been waited for.

    Args:
        device: Accepted for Horovod scripts; means nothing.
        session: The session of ``init()`` if not given.

    Returns:
        The rank that was last.

    Raises:
        NotInitialized: ``init()`` has not been called.
        PeerLeft: A rank has shut down without joining.
    """
    return (current.current() if session is None else session).join()


def get_pushpull_speed() -> tuple[int, float]:
    """How fast this process moves tensors.

    Returns:
        When this was measured (milliseconds since the epoch) and the speed (MB/s).

    Raises:
        NotInitialized: ``init()`` has not been called.
    """
    return current.current().pushpull_speed()
