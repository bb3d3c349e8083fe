"""Which servers share their machine's link with workers, and what share of the bytes each server takes."""

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
