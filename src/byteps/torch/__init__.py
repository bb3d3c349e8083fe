"""byteps for PyTorch: ``import byteps.torch as bps``, or ``as hvd`` in scripts written for Horovod.

``ops`` ``broadcasting`` ``handles``    single tensors; ``reduction`` resolves their arguments
``functions`` ``optimizer_state``       parameters, optimizer state, Python objects (``objects``)
``optimizer`` ``parallel``              training; both stand on ``gradients`` (``slots``, ``usage``)
``cross_barrier``                       steps that do not wait (``crossing``, ``reads``, ``views``)
``tensors`` ``staging`` ``compression`` tensors as buffers
``comm_hook`` ``compiled``              torch's own DistributedDataParallel; a warning about torch.compile
``torchrun`` ``invitations``            finding the job under torchrun
``collectives``                         torch.distributed for communicator=allreduce
"""

from __future__ import annotations

from collections.abc import Callable

from byteps.adapters import current as _current
from byteps.adapters.basics import (
    barrier,
    get_pushpull_speed,
    is_initialized,
    join,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)
from byteps.adapters.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from byteps.adapters.reductions import Average, Max, Min, Product, Sum
from byteps.communicator import Collectives as _Collectives
from byteps.communicator import Meeting as _Meeting
from byteps.config import Config as _Config
from byteps.torch import parallel as parallel
from byteps.torch.broadcasting import broadcast, broadcast_, broadcast_async, broadcast_async_
from byteps.torch.comm_hook import DDPState, ddp_hook
from byteps.torch.compression import Compression
from byteps.torch.cross_barrier import CrossBarrier
from byteps.torch.functions import allgather_object, broadcast_object, broadcast_parameters
from byteps.torch.gathers import (
    allgather,
    allgather_async,
    alltoall,
    alltoall_async,
    grouped_allgather,
    grouped_allgather_async,
)
from byteps.torch.grouped import (
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
)
from byteps.torch.handles import poll, synchronize
from byteps.torch.ops import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    declare,
    push_pull,
    push_pull_async,
    push_pull_async_inplace,
    push_pull_inplace,
)
from byteps.torch.optimizer import DistributedOptimizer
from byteps.torch.optimizer_state import broadcast_optimizer_state
from byteps.torch.scatters import (
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
)

__all__ = [
    "Average",
    "Compression",
    "CrossBarrier",
    "DDPState",
    "DistributedOptimizer",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ddp_hook",
    "declare",
    "get_pushpull_speed",
    "global_process_set",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "poll",
    "push_pull",
    "push_pull_async",
    "push_pull_async_inplace",
    "push_pull_inplace",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "shutdown",
    "size",
    "synchronize",
]


def init(lazy: bool = True, *, comm: object = None, process_sets: object = None, **settings: object) -> None:
    """Join the job; under torchrun, start it. Does nothing if this process has joined already.

    Args:
        lazy: Accepted for BytePS scripts; means nothing.
        comm, process_sets: Accepted for Horovod scripts, which may pass ``None``: all ranks take part.
        settings: Fields of ``byteps.config.Config`` by name, for example ``partition_bytes=1 << 20``. What is
            not given comes from the environment, ``byteps.toml`` or the defaults.

    Raises:
        ConfigError: A setting cannot work.
        JoinError: The job refused this process, or was not complete in time.
        HandshakeError: The coordinator belongs to another job, or tokens differ.
        ValueError: ``comm`` or ``process_sets`` is given.
    """
    if comm is not None or process_sets is not None:
        raise ValueError(
            "init() cannot choose ranks by comm= or process_sets=; start only those that take part"
        )
    _current.init(_discover, _engine, **settings)


def _engine(meeting: _Meeting) -> _Collectives:
    from byteps.torch.collectives import engine  # for the same reason

    return engine(meeting)


def _discover(config: _Config) -> tuple[_Config, Callable[[], None]]:
    from byteps.torch.torchrun import discover  # needs torch.distributed, which takes time to import

    return discover(config)
