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
def socket_job(size: int, servers: int = 1, **settings: object) -> Iterator[list[Session]]:
    """Sessions by rank; at the end all roles must end in order."""
    address: concurrent.futures.Future[str] = concurrent.futures.Future()

    def config(role: str, **more: object) -> Config:
        common = {"auth_token": "secret", "size": size, "num_servers": servers, "join_timeout_s": TIMEOUT_S}
        return Config(role=role, **{**common, **settings, **more})  # type: ignore[arg-type]

    def ready(host: str, port: int) -> None:
        address.set_result(f"{host}:{port}")

    roles = [Role(lambda: asyncio.run(serve(config("coordinator"), ready=ready)))]
    where = address.result(TIMEOUT_S)
    roles += [Role(lambda: run_server(config("server", coordinator=where))) for _ in range(servers)]
    with concurrent.futures.ThreadPoolExecutor(size) as pool:
        sessions = list(
            pool.map(lambda rank: connect(config("worker", coordinator=where, rank=rank)), range(size))
        )
    try:
        yield sessions
    finally:
        for session in sessions:
            session.shutdown()
    assert [role.exit_code() for role in roles] == [0] * len(roles)
