"""byteps: distributed training that keeps GPUs fed over ordinary networks.

Workers ``push_pull`` gradients through CPU servers that sum them. The layers, lowest first:

``errors`` ``dtypes`` ``config``        plain data; ``config`` is the only reader of the environment
``_native``                             the compiled data plane
``wire`` ``security`` ``network``       messages, handshake, addresses
``placement``                           which server sums what
``children``                            starts roles as child processes
``coordinator`` ``control``             the control plane, and a member's end of it
``server`` ``worker``                   the other two roles
``communicator`` ``session``            what adapters talk to
``testing``                             whole jobs as threads of one process
``adapters`` ``torch``                  framework adapters: import ``byteps.torch``
``launch`` ``cli``                      starting jobs

Importing ``byteps`` imports none of them; each adapter imports its own framework.
"""

from __future__ import annotations

__version__ = "0.1.0"
