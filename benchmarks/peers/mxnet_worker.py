"""A worker of MXNet's ``dist_sync`` store, which is ps-lite: ``python -m benchmarks.peers.mxnet_worker``.

Rank, size and the meeting point come from its environment. It checks its first result.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from benchmarks.peers.answers import time_exchanges


def main() -> None:
    """Time pushes and pulls."""
    mxnet: Any = importlib.import_module("mxnet")
    store = mxnet.kv.create("dist_sync")

    def prepare(nbytes: int) -> Callable[[], None]:
        shape = (nbytes // 4,)
        pushed, pulled = mxnet.nd.ones(shape) * (store.rank + 1), mxnet.nd.zeros(shape)
        key = str(nbytes)
        store.init(key, mxnet.nd.zeros(shape))

        def exchange() -> None:
            store.push(key, pushed)
            store.pull(key, out=pulled)
            pulled.wait_to_read()

        exchange()
        expected = store.num_workers * (store.num_workers + 1) / 2
        if float(pulled.min().asscalar()) != expected or float(pulled.max().asscalar()) != expected:
            raise RuntimeError(f"rank {store.rank}: the sum of {nbytes} bytes is wrong")
        pushed[:] = 0  # a pull may also overwrite what was pushed, which would grow without end
        pushed.wait_to_read()
        return exchange

    time_exchanges(prepare)


if __name__ == "__main__":
    main()
