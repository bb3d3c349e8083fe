"""What follows from who shares a machine: each server's share of the bytes, and whether a lane is spare."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

from byteps.placement import mixed_weights
from byteps.wire import Join

_log = logging.getLogger(__name__)


def server_weights(workers: Sequence[Join], servers: Sequence[Join]) -> list[float] | None:
    """The servers' shares of the bytes.

    What servers tell themselves counts first. Else, where some share a worker's address and some do not, the
    formula for mixed placement gives each machine its share, which its servers divide.

    Args:
        workers: What the workers said when they joined.
        servers: The same of the servers, in the order of their numbers.

    Returns:
        A weight for each server; ``None`` for equal shares.
    """
    if any(server.weight for server in servers):
        return [server.weight or 1.0 for server in servers]
    with_workers = {worker.address for worker in workers}
    machines = Counter(server.address for server in servers)
    colocated = [address for address in machines if address in with_workers]
    dedicated = [address for address in machines if address not in with_workers]
    if "" in with_workers or not colocated or not dedicated:
        return None
    shares = mixed_weights(len(with_workers), len(dedicated), len(colocated))
    share = dict(zip(colocated + dedicated, shares, strict=True))
    _log.info(
        "%d of %d workers' machines have servers: each takes %.3f of the bytes; each of %d others takes %.3f",
        *(len(colocated), len(with_workers), shares[0], len(dedicated), shares[-1]),
    )
    return [share[server.address] / machines[server.address] for server in servers]


def spare_lanes(workers: Sequence[Join], servers: Sequence[Join]) -> int:
    """How many lanes a job opens that carry nothing at first, where nobody says how many it is to have.

    One where each worker has a machine to itself. Several on one machine have a thread each anyhow, and
    beside servers of the same machine they share memory, which lanes do not make faster.

    Args:
        workers: What the workers said when they joined.
        servers: The same of the servers.
    """
    machines = [worker.address for worker in workers]
    alone = "" not in machines and len(set(machines)) == len(machines)
    apart = alone and not {server.address for server in servers}.intersection(machines)
    return int(bool(servers) and apart and all(one.may_add_lanes for one in (*workers, *servers)))
