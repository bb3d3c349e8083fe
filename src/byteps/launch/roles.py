"""``byteps coordinator`` and ``byteps server``: one role in the foreground, or as some launcher's child."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from byteps.children import hold
from byteps.config import Config, child_environment, format_address
from byteps.errors import ConfigError
from byteps.launch.settings import add_settings, resolve_given
from byteps.topology import Pinning

_OF_WORKERS = ("role", "local_rank", "local_size", "nodes", "node_rank")


def add_coordinator(parser: argparse.ArgumentParser) -> None:
    """Options of ``byteps coordinator``."""
    parser.epilog = (
        "It prints the address for BYTEPS_COORDINATOR and ends with the job.\n\n"
        "example:\n"
        "  BYTEPS_AUTH_TOKEN_FILE=token byteps coordinator --bind-host 10.0.0.1 \\\n"
        "      --num-workers 4 --num-servers 2"
    )
    add_settings(parser, without=(*_OF_WORKERS, "rank", "coordinator"))
    _add_leash(parser)
    parser.set_defaults(run=_run_coordinator)


def add_server(parser: argparse.ArgumentParser) -> None:
    """Options of ``byteps server``."""
    parser.epilog = (
        "It ends with the job.\n\n"
        "example:\n"
        "  BYTEPS_AUTH_TOKEN_FILE=token byteps server --coordinator 10.0.0.1:PORT"
    )
    add_settings(parser, without=(*_OF_WORKERS, "size"))
    _add_leash(parser)
    parser.set_defaults(run=_run_server)


def _add_leash(parser: argparse.ArgumentParser) -> None:
    # Only the process that starts this one as its child gives it.
    parser.add_argument("--leash", help=argparse.SUPPRESS)


def _run_coordinator(arguments: argparse.Namespace) -> int:
    publish = _tie(arguments)
    return run_coordinator(resolve_given(arguments, role="coordinator").config, publish)


def _run_server(arguments: argparse.Namespace) -> int:
    publish = _tie(arguments)
    return run_server_role(resolve_given(arguments, role="server").config, publish)


def _tie(arguments: argparse.Namespace) -> Callable[[str], None] | None:
    """Tie this process to the one that started it, if it was started as a child."""
    return hold(arguments.leash) if arguments.leash else None


def run_coordinator(config: Config, publish: Callable[[str], None] | None = None) -> int:
    """Run the coordinator until the job has ended.

    Args:
        config: its settings.
        publish: gets the line "host port" when it listens; by default the address is printed.

    Returns:
        The exit code.
    """
    import asyncio

    from byteps.coordinator.service import serve
    from byteps.logs import set_up_logging

    def ready(host: str, port: int) -> None:
        if publish is not None:
            publish(f"{host} {port}")
        else:
            print(f"coordinator ready: BYTEPS_COORDINATOR={format_address(host, port)}", flush=True)

    set_up_logging(config)
    return asyncio.run(serve(config, ready=ready))


def run_server_role(config: Config, publish: Callable[[str], None] | None = None) -> int:
    """Run a server until the job has ended.

    Args:
        config: its settings.
        publish: gets the line "ready" when the server is; by default nobody is told.

    Returns:
        The exit code.

    Raises:
        ConfigError: the coordinator's address is not set.
    """
    from byteps.logs import set_up_logging
    from byteps.server import run_server

    if not config.coordinator:
        raise ConfigError("no coordinator is given; set BYTEPS_COORDINATOR or --coordinator to host:port")
    set_up_logging(config)
    if publish is not None:  # who started this process has put it where it should run
        return run_server(config, ready=lambda: publish("ready"))
    pinning = Pinning.of(config, child_environment({}), 0, 1, lambda line: print(line, file=sys.stderr))
    with pinning.place("server 0"):
        return run_server(config, ready=lambda: None)
