"""Ranks of one node sum in shared memory, on emulated hosts: training, bytes on the wire, killed ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from benchmarks.cluster import Cluster

from .cases import Case, lose_in_traffic, run_all

ROUNDS = 5
RANK = (str(Path(__file__).with_name("node_rank.py")), str(ROUNDS))
TORCH_RANK = str(Path(__file__).with_name("node_sums_rank.py"))
RANK_BYTES = ROUNDS * (4 << 20)
NODES = 3
CLOSE = 0.03


@pytest.fixture(scope="module")
def hosts() -> Iterator[Cluster]:
    """Three for workers, and one for coordinator and server."""
    with Cluster(NODES + 1, "8gbit") as cluster:
        yield cluster


class OnHosts:
    """A job with one server, and some workers on each of the first hosts. A context manager."""

    def __init__(
        self, hosts: Cluster, sizes: Sequence[int], rank: Sequence[str] = RANK, **variables: str
    ) -> None:
        self._hosts = hosts
        self._sizes = sizes
        self._rank = rank
        self._variables = {"BYTEPS_AUTH_TOKEN": "hosts" * 5, "BYTEPS_PEER_TIMEOUT": "20", **variables}
        self._processes: list[subprocess.Popen[str]] = []

    def run(self) -> tuple[list[list[str]], list[int]]:
        """The words that each rank prints, and what each node has sent, in bytes."""
        last = NODES
        count = sum(self._sizes)
        counts = ["--num-workers", str(count), "--num-servers", "1"]
        coordinator = self._start(last, ["-m", "byteps", "coordinator", *counts], BYTEPS_INTERFACE="eth0")
        assert coordinator.stdout is not None
        self._variables["BYTEPS_COORDINATOR"] = coordinator.stdout.readline().split("=")[1].strip()
        self._start(last, ["-m", "byteps", "server"], BYTEPS_INTERFACE="eth0")
        before = self._sent()
        ranks: list[subprocess.Popen[str]] = []
        for node, local_size in enumerate(self._sizes):
            for _ in range(local_size):
                identity = {"BYTEPS_RANK": str(len(ranks)), "BYTEPS_SIZE": str(count)}
                ranks.append(self._start(node, self._rank, **identity))
        words = [rank.communicate(timeout=40)[0].split() for rank in ranks]
        return words, [now - then for now, then in zip(self._sent(), before, strict=True)]

    def _start(self, host: int, words: Sequence[str], **more: str) -> subprocess.Popen[str]:
        variables = {**self._variables, **more, "OMP_NUM_THREADS": "1"}
        process = self._hosts.run(host, [sys.executable, *words], env=variables, stdout=subprocess.PIPE)
        self._processes.append(process)
        return process

    def _sent(self) -> list[int]:
        return [self._hosts.nic_bytes(node)[0] for node in range(len(self._sizes))]

    def __enter__(self) -> OnHosts:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("sizes", [(2,), (4,), (1, 1), (2, 2), (4, 1), (1, 3, 2)], ids=str)
def test_training_is_the_same_and_each_node_sends_what_one_rank_would(
    hosts: Cluster, sizes: tuple[int, ...]
) -> None:
    with OnHosts(hosts, sizes) as job:
        words, sent = job.run()
    assert len({digest for _, digest, _ in words}) == 1, "all ranks have the same parameters, bit by bit"
    assert all(float(distance) < 1e-9 for _, _, distance in words), words
    # What one rank sends: the gradients, a little control traffic, and TCP's headers in packets of 64 KiB.
    wanted = RANK_BYTES if len(sizes) > 1 else 0
    for node, bytes_sent in enumerate(sent):
        assert abs(bytes_sent - wanted) < 0.15 * RANK_BYTES, (node, sent)
    if len(sizes) > 1:
        assert max(sent) / min(sent) < 1 + CLOSE, sent


@pytest.mark.timeout(120)
@pytest.mark.parametrize("sizes", [(2, 2), (2, 1)], ids=str)
def test_training_is_the_same_where_nodes_sum_by_collectives_first(
    hosts: Cluster, sizes: tuple[int, ...]
) -> None:
    with OnHosts(hosts, sizes, (TORCH_RANK, "train")) as job:
        words, _ = job.run()
    assert len({digest for digest, _ in words}) == 1, "all ranks have the same parameters, bit by bit"
    assert all(float(distance) < 1e-9 for _, distance in words), words


@pytest.mark.timeout(120)
def test_a_rank_killed_where_nodes_sum_by_collectives_ends_the_others_with_one_error(hosts: Cluster) -> None:
    with OnHosts(hosts, (2, 2), (TORCH_RANK, "lost")) as job:
        words, _ = job.run()
    for rank, said in enumerate(words):
        assert said == [] if rank == 1 else said[0] == "PeerLost", words
        assert rank == 1 or " ".join(said).count("worker rank 1 (") == 1, words


@pytest.mark.timeout(120)
def test_a_killed_rank_ends_the_others_and_leaves_nothing() -> None:
    """Three ranks of one node sum without a break; one of them is killed."""
    run_all(
        lose_in_traffic,
        [
            Case(f"worker {rank}", "kill", rf"worker rank {rank} \(pid \d+ on \S+\) was lost")
            for rank in range(3)
        ],
        {"BYTEPS_HIERARCHICAL": "on"},
    )
    # Sockets without a name in the file system, and memory without any name, end with the processes.
    assert not [name for name in os.listdir("/dev/shm") if "byteps" in name]
