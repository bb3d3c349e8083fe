"""How byteps and each peer are started on hosts."""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.hosts import Hosts, Process
from benchmarks.jobs import Job
from benchmarks.peers.environments import python_of, raw_program

ADDRESS_SIGN = "BYTEPS_COORDINATOR="
WORKER = "benchmarks.peers.torch_worker"


@dataclass(frozen=True)
class Starter:
    """Starts jobs that run their workers and servers on given hosts.

    Args:
        hosts: Where.
        workers: The host of each worker.
        servers: The host of each server; none for byteps over all-reduce.
    """

    hosts: Hosts
    workers: Sequence[int] = (0, 1)
    servers: Sequence[int] = (2, 3)

    def byteps(
        self,
        kind: str = "byteps",
        module: str = WORKER,
        settings: Mapping[str, str] | None = None,
    ) -> Job:
        """Push_pull, or training with ``byteps-ddp``, or another module's workers; by default settings."""
        python = [sys.executable, "-m", "byteps"]
        token = {"BYTEPS_AUTH_TOKEN": secrets.token_hex(32), **(settings or {})}
        place = [*self.servers, *self.workers][0]
        counts = ["--num-workers", str(len(self.workers)), "--num-servers", str(len(self.servers))]
        words = [*python, "coordinator", "--bind-host", self.hosts.address(place), *counts]
        coordinator = self.hosts.run(place, words, token, stdout=subprocess.PIPE)
        address = {"BYTEPS_COORDINATOR": _first_line(coordinator).partition(ADDRESS_SIGN)[2], **token}
        servers = [self.hosts.run(host, [*python, "server"], address) for host in self.servers]
        command = [sys.executable, "-m", module, kind]
        return Job(kind, self._ranks(command, address), servers, [coordinator])

    def gloo(self, kind: str = "gloo", module: str = WORKER) -> Job:
        """Torch's all_reduce over gloo, or with ``ddp`` training under DistributedDataParallel."""
        meeting = f"tcp://{self.hosts.address(self.workers[0])}:{self.hosts.free_port(self.workers[0])}"
        command = [sys.executable, "-m", module, kind]
        env = {"GLOO_SOCKET_IFNAME": self.hosts.interface, "TORCH_CPP_LOG_LEVEL": "ERROR"}
        return Job(kind, self._ranks(command, env, [meeting]))

    def horovod(self, module: str = WORKER, settings: Mapping[str, str] | None = None) -> Job:
        """Horovod's allreduce over gloo, or another module's workers; by default settings."""
        python = [python_of("horovod"), "-m"]
        names = [f"host{rank}" for rank in range(len(self.workers))]
        meeting = self.hosts.run(
            self.workers[0],
            [*python, "benchmarks.peers.horovod_meeting", *names],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        env = {
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": self.hosts.address(self.workers[0]),
            "HOROVOD_GLOO_RENDEZVOUS_PORT": _first_line(meeting),
            "HOROVOD_GLOO_IFACE": self.hosts.interface,
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            **(settings or {}),
        }
        return Job("horovod", self._ranks([*python, module, "horovod"], env), (), [meeting])

    def ps_lite(self) -> Job:
        """MXNet's ``dist_sync``: push and pull through ps-lite."""
        python = python_of("mxnet")
        place = self.servers[0]
        env = {
            "DMLC_PS_ROOT_URI": self.hosts.address(place),
            "DMLC_PS_ROOT_PORT": self.hosts.free_port(place),
            "DMLC_NUM_WORKER": str(len(self.workers)),
            "DMLC_NUM_SERVER": str(len(self.servers)),
            "DMLC_INTERFACE": self.hosts.interface,
            "OMP_NUM_THREADS": "1",
        }
        role = [python, "-c", "import mxnet"]
        scheduler = self.hosts.run(place, role, {**env, "DMLC_ROLE": "scheduler"})
        servers = [self.hosts.run(host, role, {**env, "DMLC_ROLE": "server"}) for host in self.servers]
        command = [python, "-m", "benchmarks.peers.mxnet_worker"]
        workers = self._ranks(command, {**env, "DMLC_ROLE": "worker"})
        return Job("ps-lite", workers, servers, [scheduler])

    def raw(self) -> Job:
        """Plain sockets that move the same bytes: the limit."""
        program = raw_program()
        servers = [
            self.hosts.run(
                host,
                [program, "server", self.hosts.address(host), str(len(self.workers))],
                stdout=subprocess.PIPE,
            )
            for host in self.servers
        ]
        places = [
            f"{self.hosts.address(host)}:{_first_line(server)}"
            for host, server in zip(self.servers, servers, strict=True)
        ]
        workers = [self._answering(host, [program, "worker", *places], {}) for host in self.workers]
        return Job("raw", workers, servers)

    def _ranks(
        self, command: Sequence[str], env: Mapping[str, str], words: Sequence[str] = ()
    ) -> list[Process]:
        """One worker per rank, told its rank and size in the ways that the systems know."""
        size = str(len(self.workers))
        processes = []
        for number, host in enumerate(self.workers):
            rank = str(number)
            told = {
                "OMP_NUM_THREADS": "1",
                "BYTEPS_RANK": rank,
                "BYTEPS_SIZE": size,
                "HOROVOD_RANK": rank,
                "HOROVOD_SIZE": size,
                "HOROVOD_CROSS_RANK": rank,
                "HOROVOD_CROSS_SIZE": size,
                "HOROVOD_LOCAL_RANK": "0",
                "HOROVOD_LOCAL_SIZE": "1",
                "HOROVOD_HOSTNAME": f"host{rank}",
            }
            processes.append(self._answering(host, [*command, rank, size, *words], {**told, **env}))
        return processes

    def _answering(self, host: int, command: Sequence[str], env: Mapping[str, str]) -> Process:
        """A process that takes requests on standard input and answers on standard output."""
        return self.hosts.run(host, command, env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _first_line(process: Process) -> str:
    """The first line that a process prints."""
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line:
        raise RuntimeError(f"{process.args!r} has ended; its output above says why")
    return line
