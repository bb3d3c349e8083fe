"""One link over UCX beside UCX's own ``ucx_perftest``: 4 MiB blocks, one way, within this machine.

Both sleep while they wait, as links do by default, and take turns. It needs libucx-dev and ucx-utils.
"""

from __future__ import annotations

import re
import shutil
import socket
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import ROOT, Row, main
from byteps.config import child_environment

NBYTES = 4 << 20
COUNT = 400
TURNS = 5
TRANSPORTS = ("tcp", "sm")
LEAST_SHARE = 0.8
SOURCES = ("ucx.cc", "ucx_api.cc", "ucx_messages.cc", "link_ucx.cc")
MIB = 1 << 20


def measure() -> Sequence[Row]:
    """Rates of both, and the share of the link, for each transport of UCX."""
    if shutil.which("ucx_perftest") is None:
        raise SystemExit("this measurement needs ucx_perftest: apt-get install ucx-utils")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        program = build(Path(folder))
        for transport in TRANSPORTS:
            environment = child_environment({"UCX_TLS": transport, "UCX_WARN_UNUSED_ENV_VARS": "n"})
            pairs = [(link_rate(program, environment), perftest_rate(environment)) for _ in range(TURNS)]
            ours, theirs = (statistics.median(rates) for rates in zip(*pairs, strict=True))
            rows += [
                Row(f"{transport}, link", ours / 1e9, unit="GB/s"),
                Row(f"{transport}, ucx_perftest tag_bw", theirs / 1e9, unit="GB/s"),
                Row(f"{transport}, share", ours / theirs, LEAST_SHARE, least=True),
            ]
    return rows


def build(folder: Path) -> Path:
    """The program of ``ucx.cc``."""
    sources = [ROOT / "benchmarks/ucx.cc", *(ROOT / "native" / name for name in SOURCES)]
    program = folder / "ucx"
    options = ["-std=c++20", "-O3", "-pthread", "-I", str(ROOT / "native")]
    subprocess.run(["g++", *options, *map(str, sources), "-ldl", "-o", str(program)], check=True)
    return program


def link_rate(program: Path, environment: dict[str, str]) -> float:
    """Bytes per second through one link."""
    command = [str(program), str(NBYTES), str(COUNT)]
    done = subprocess.run(
        command, env=environment, check=True, stdout=subprocess.PIPE, text=True, timeout=120
    )
    return float(done.stdout.split()[-1])


def perftest_rate(environment: dict[str, str]) -> float:
    """Bytes per second by UCX's own measurement."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    common = ["-E", "sleep", "-p", port]
    with subprocess.Popen(
        ["stdbuf", "-oL", "ucx_perftest", *common], env=environment, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        server.stdout.readline()  # it waits for a connection
        test = ["-t", "tag_bw", "-s", str(NBYTES), "-n", str(COUNT), "-w", str(COUNT // 10)]
        client = subprocess.run(
            ["ucx_perftest", "127.0.0.1", *common, *test],
            env=environment,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            timeout=120,
        )
        server.communicate(timeout=30)
    # Final: messages, three latencies, two rates in MB/s (of 2^20 bytes), two message rates.
    final = re.search(r"^Final:\s+(.*)$", client.stdout, re.MULTILINE)
    if final is None:
        raise RuntimeError(f"ucx_perftest printed no result: {client.stdout}")
    return float(final[1].split()[5]) * MIB


if __name__ == "__main__":
    main("A link over UCX, 4 MiB blocks one way", measure)
