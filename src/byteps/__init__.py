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

Importing ``byteps`` imports none of them; each adapter imports its own framework.
"""

from __future__ import annotations

__version__ = "0.1.0"
