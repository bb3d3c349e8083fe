"""Installs peers, outside the repository: ``python -m benchmarks.peers install horovod|mxnet``."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping

from benchmarks.peers.environments import PeerMissing, folder, install_horovod, install_mxnet, python_of

INSTALLERS: Mapping[str, Callable[[], None]] = {"horovod": install_horovod, "mxnet": install_mxnet}


def main() -> None:
    """Install the peers that are named, or say which are there."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description=f"Peers to measure against, in {folder()} (set BYTEPS_PEERS for another folder).",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    install = commands.add_parser("install", help="build or download peers; Horovod takes ten minutes")
    install.add_argument("peers", nargs="+", choices=INSTALLERS)
    commands.add_parser("list", help="say which are installed")
    arguments = parser.parse_args()
    if arguments.command == "list":
        show()
        return
    for peer in arguments.peers:
        began = time.monotonic()
        INSTALLERS[peer]()
        print(f"{peer} is installed in {folder() / peer} ({time.monotonic() - began:.0f} s)")


def show() -> None:
    """One line per peer."""
    for peer in INSTALLERS:
        try:
            print(f"{peer}: {python_of(peer)}")
        except PeerMissing as missing:
            print(missing)


if __name__ == "__main__":
    main()
