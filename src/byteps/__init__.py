"""byteps: distributed training that keeps GPUs fed over ordinary networks.

Workers ``push_pull`` gradients through CPU servers that sum them. The layers, lowest first:

``errors`` ``dtypes`` ``config`` ``logs``    plain data; ``config`` alone reads the environment
``_native``                             the compiled data plane
``wire`` ``network`` ``security``         messages, addresses, handshake
``placement``                           which server sums what
``diagnostics``                         what is in flight, in words
``trace``                               the timeline
``children``                            starts roles as child processes
``coordinator``                         the control plane
``control`` ``dialing``                 a member's end of it
``server`` ``worker``                   the other two roles
``planner``                             what a cluster would gain, simulated
``communicator`` ``session`` ``joining``  what adapters talk to
``testing``                             whole jobs as threads of one process
``adapters`` ``torch``                  framework adapters: import ``byteps.torch``
``launch`` ``doctor`` ``bench`` ``cli``     starting, checking and measuring jobs
``compat``                              Horovod's module names

Importing ``byteps`` imports none of them; each adapter imports its own framework. ``run`` starts a job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["run"]

__version__ = "0.1.0"


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    np: int | None = None,
    **options: Any,
) -> list[Any]:
    """Call a function on every rank of a job on this machine; see ``byteps.launch.function.run``.

    Args:
        func: Called as ``func(*args, **kwargs)`` in each process; it calls ``init()`` itself.
        args, kwargs: Its arguments.
        np: Number of workers; 1 if not given.
        options: ``servers``, ``env``, and settings by name.

    Returns:
        What the function returned, by rank.
    """
    from byteps.launch import function  # imports what `import byteps` should not

    return function.run(func, args, kwargs, np, **options)
