"""A job over real sockets within one process: its coordinator and servers are threads."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Iterator

from byteps.config import Config
from byteps.coordinator.service import serve
from byteps.joining import connect
from byteps.server import run_server
from byteps.session import Session

TIMEOUT_S = 20.0


class Role(threading.Thread):
    """A role on a thread of its own."""

    def __init__(self, function: Callable[[], int]) -> None:
        super().__init__(daemon=True)
        self._function = function
        self._exit_code: int | None = None
        self.start()

    def run(self) -> None:
        self._exit_code = self._function()

    def exit_code(self) -> int | None:
        """Wait for its end; ``None`` if it raised or did not end in time."""
        self.join(TIMEOUT_S)
        return None if self.is_alive() else self._exit_code


@contextlib.contextmanager
def socket_roles(size: int, servers: int = 1, **settings: object) -> Iterator[dict[str, object]]:
    """A coordinator and servers; yields the settings of a worker. At the end all roles must end in order."""
    address: concurrent.futures.Future[str] = concurrent.futures.Future()
    shared: dict[str, object] = {"auth_token": "secret", "size": size, "num_servers": servers}
    shared = {**shared, "join_timeout_s": TIMEOUT_S, **settings}

    def ready(host: str, port: int) -> None:
        address.set_result(f"{host}:{port}")

    coordinator = make_config(role="coordinator", **shared)
    roles = [Role(lambda: asyncio.run(serve(coordinator, ready=ready)))]
    shared["coordinator"] = address.result(TIMEOUT_S)
    server = make_config(role="server", **shared)
    roles += [Role(lambda: run_server(server)) for _ in range(servers)]
    yield shared
    assert [role.exit_code() for role in roles] == [0] * len(roles)


def make_config(**settings: object) -> Config:
    """Settings from values that are not known one by one."""
    return Config(**settings)  # type: ignore[arg-type]


@contextlib.contextmanager
def socket_job(size: int, servers: int = 1, **settings: object) -> Iterator[list[Session]]:
    """Sessions by rank; at the end all roles must end in order."""
    with socket_roles(size, servers, **settings) as shared:
        configs = [make_config(rank=rank, **shared) for rank in range(size)]
        with concurrent.futures.ThreadPoolExecutor(size) as pool:
            sessions = list(pool.map(connect, configs))
        try:
            yield sessions
        finally:
            for session in sessions:
                session.shutdown()
