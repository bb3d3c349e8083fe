"""The public calls that touch no tensor; every adapter exports them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

from byteps.adapters import current
from byteps.adapters.process_sets import ProcessSet, add_process_set, group_of, wait_for_members
from byteps.communicator import Engine, Meeting
from byteps.config import Config
from byteps.errors import ConfigError
from byteps.session import Session
from byteps.trace import DYNAMIC, LaterTrace

if TYPE_CHECKING:
    from byteps.communicator.node_collectives import NodeEngine, NodeMeeting


def init(
    *,
    comm: object = None,
    process_sets: Sequence[ProcessSet] | str | None = None,
    **settings: object,
) -> None:
    """Join the job. Does nothing if this process has joined already.

    Start the job by ``byteps run``, or set a coordinator; a process that is told of none is alone.

    Args:
        comm: Accepted for Horovod scripts, which may pass ``None``: all ranks take part.
        process_sets: Process sets to register, the same on all ranks; "dynamic" means nothing, as sets can
            always be added later.
        settings: Fields of ``byteps.config.Config`` by name, for example ``partition_bytes=1 << 20``. What is
            not given comes from the environment, ``byteps.toml`` or the defaults.

    Raises:
        ConfigError: A setting cannot work; torchrun and ``communicator = allreduce`` need ``byteps.torch``.
        JoinError: The job refused this process, or was not complete in time.
        HandshakeError: The coordinator belongs to another job, or tokens differ.
        ValueError: ``comm`` is given, or a process set cannot be; see ``add_process_set``.
    """
    begin(_no_torchrun, _no_engine, comm, process_sets, settings)


def begin(
    discover: current.Discover,
    engine: Engine,
    comm: object,
    process_sets: Sequence[ProcessSet] | str | None,
    settings: dict[str, object],
    node_engine: NodeEngine | None = None,
) -> None:
    """``init`` for an adapter that finds the job, or makes collectives, in its own way.

    Args:
        discover, engine: See ``current.init``.
        comm, process_sets, settings: See ``init``.
        node_engine: See ``current.init``; by default it says that there is none.
    """
    wanted = [] if process_sets is None or process_sets == "dynamic" else list(process_sets)
    if not all(isinstance(one, ProcessSet) for one in wanted):
        raise ValueError(f'process_sets= must be a list of ProcessSet or "dynamic", not {process_sets!r}')
    if comm is not None:
        raise ValueError("init() cannot choose ranks by comm=; start only those that take part")
    session = current.init(discover, engine, node_engine or _no_node_engine, **settings)
    for one in wanted:
        if isinstance(one, ProcessSet) and one.process_set_id is None:  # init() may have been called before
            add_process_set(one, session=session)


def _no_torchrun(config: Config) -> tuple[Config, Callable[[], None]]:
    if config.size > 1:
        raise ConfigError(
            "under torchrun only byteps.torch finds the job by itself: start it by `byteps run -np N`, or "
            "set BYTEPS_COORDINATOR to the coordinator's host:port"
        )
    return config, lambda: None


def _no_engine(meeting: Meeting) -> NoReturn:
    raise ConfigError(
        "communicator = allreduce works on torch.distributed and needs byteps.torch: start servers instead "
        "(byteps run --servers N)"
    )


def _no_node_engine(meeting: NodeMeeting) -> NoReturn:
    raise ConfigError(
        "node_collectives works on torch.distributed and needs byteps.torch: unset BYTEPS_NODE_COLLECTIVES"
    )


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


def start_timeline(file_path: str, mark_cycles: bool = False, *, session: Session | None = None) -> None:
    """Record a timeline from now on: ``run.json`` becomes ``run.rank0.json.gz`` on rank 0, for example.

    Each rank that calls this records itself; servers do not take part. Needs ``timeline = DYNAMIC``, in the
    environment ``BYTEPS_TIMELINE=DYNAMIC`` or ``HOROVOD_TIMELINE=DYNAMIC``.

    Args:
        file_path: Where to; the rank is added to the name.
        mark_cycles: Accepted for Horovod scripts; there are no cycles.
        session: The session of ``init()`` if not given.

    Raises:
        ValueError: The timeline is not ``DYNAMIC``, or one is recorded already.
        OSError: The file cannot be written.
        NotInitialized: ``init()`` has not been called.
    """
    session = current.current() if session is None else session
    if session.config.timeline != DYNAMIC:
        raise ValueError(
            f"start_timeline: a timeline can be started only where BYTEPS_TIMELINE={DYNAMIC} is set, or "
            f"init(timeline={DYNAMIC!r}) was called; here it is {session.config.timeline!r}"
        )
    if isinstance(session.trace, LaterTrace):  # a rank that is alone sends nothing, and has nothing to record
        session.trace.begin(file_path)


def stop_timeline(*, session: Session | None = None) -> None:
    """End the timeline of ``start_timeline`` and write its file. Does nothing if none is recorded.

    Args:
        session: The session of ``init()`` if not given.

    Raises:
        NotInitialized: ``init()`` has not been called.
    """
    trace = (current.current() if session is None else session).trace
    if isinstance(trace, LaterTrace):
        trace.end()


def get_pushpull_speed() -> tuple[int, float]:
    """How fast this process moves tensors.

    Returns:
        When this was measured (milliseconds since the epoch) and the speed (MB/s).

    Raises:
        NotInitialized: ``init()`` has not been called.
    """
    return current.current().pushpull_speed()
