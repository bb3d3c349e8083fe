"""The settings of one process: one frozen dataclass whose fields carry their help text, unit and limits."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from byteps.config.addresses import parse_address
from byteps.config.parsing import validate
from byteps.errors import ConfigError

MAX_PARTITION_BYTES = 64 << 20
"""Larger partitions gain nothing, and each is held twice by its server."""

DEFAULT_PARTITION_BYTES = 128 << 10
"""What an automatic ``partition_bytes`` is."""
_MAX_NUMBER = 2**31 - 1


def _is_address(text: str) -> bool:
    try:
        parse_address(text)
    except ConfigError:
        return False
    return True


def _setting(
    default: Any,
    text: str,
    *,
    unit: str = "",
    low: float | None = 0,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    aliases: tuple[tuple[str, str], ...] = (),
    check: Callable[[str], bool] | None = None,
    secret: bool = False,
    variable: bool = True,
) -> Any:
    """Make a dataclass field.

    Args:
        default: the value when no source gives one.
        text: the help text.
        unit: what the number counts, or the form of the text.
        low: smallest number allowed.
        high: largest number allowed; for text the most bytes.
        choices: the words allowed.
        aliases: other spellings of a choice.
        check: whether a non-empty text is well formed.
        secret: never shown.
        variable: whether an environment variable sets it.
    """
    metadata = {
        "help": text,
        "unit": unit,
        "low": low,
        "high": high,
        "choices": choices,
        "aliases": dict(aliases),
        "check": check,
        "secret": secret,
        "variable": variable,
    }
    return dataclasses.field(default=default, repr=not secret, metadata=metadata)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Every setting of one process. Use ``resolve()`` to fill it from arguments, environment and file.

    Raises:
        ConfigError: a value has the wrong type or is outside what its field allows.
    """

    role: str = _setting(
        "worker",
        "What this process does. The old name `scheduler` means `coordinator`.",
        choices=("worker", "server", "coordinator"),
        aliases=(("scheduler", "coordinator"),),
    )
    rank: int = _setting(
        -1, "Number of this worker in the job; -1: the coordinator chooses.", low=-1, high=_MAX_NUMBER
    )
    size: int = _setting(0, "Number of workers in the job; 0: not told.", high=_MAX_NUMBER)
    local_rank: int = _setting(
        -1, "Number of this worker on its node; -1: not told.", low=-1, high=_MAX_NUMBER
    )
    local_size: int = _setting(0, "Number of workers on this node; 0: not told.", high=_MAX_NUMBER)
    num_servers: int = _setting(0, "Number of servers in the job; 0: not told.", high=65535)
    extra_servers: int = _setting(
        0,
        "Servers on machines of their own, started there with `byteps server`, beside those that "
        "`byteps run` or torchrun starts with the workers.",
        high=65535,
    )
    server_weight: float = _setting(
        0.0,
        "Share of the bytes that this server takes, relative to the other servers (1 for who tells none). "
        "0 on all: equal, or by formula where some of them share workers' machines (running.md).",
        high=1e6,
    )
    coordinator: str = _setting(
        "", "Address of the coordinator.", unit="host:port or [ipv6]:port", check=_is_address
    )
    job_id: str = _setting(
        "byteps", "Name of the job. A peer of another job is turned away.", unit="text", high=64
    )
    launcher: str = _setting(
        "",
        "What started this process; detected, empty for nothing known.",
        choices=("", "byteps", "dmlc", "horovod", "torchrun", "mpi", "slurm"),
    )
    nodes: int = _setting(0, "Number of nodes in the job; 0: not told.", high=_MAX_NUMBER)
    node_rank: int = _setting(-1, "Number of this node; -1: not told.", low=-1, high=_MAX_NUMBER)
    interface: str = _setting(
        "", "Network interface to listen on and to advertise, such as `eth0`; empty: by route.", unit="name"
    )
    bind_host: str = _setting(
        "", "Host or address to listen on; empty: the address that leads to the coordinator.", unit="host"
    )
    advertise_host: str = _setting(
        "",
        "Host or address under which others reach this process; empty: the one listened on.",
        unit="host",
    )
    port: int = _setting(
        0,
        "Port to listen on; 0: the kernel chooses. Set by `--port`; a coordinator's by `DMLC_PS_ROOT_PORT`.",
        high=65535,
        # In Kubernetes a Service called "byteps" puts a BYTEPS_PORT=tcp://... into every pod.
        variable=False,
    )
    auth_token: str = _setting(
        "",
        "The secret that all processes of the job share. A file is safer: environments can be seen.",
        unit="text",
        secret=True,
    )
    auth_token_file: str = _setting(
        "", "File that holds the shared secret; surrounding white space is cut.", unit="path"
    )
    insecure: bool = _setting(
        False,
        "Allow listening on a non-loopback address without a token. Anyone who can connect may then join.",
    )
    tls_cert: str = _setting(
        "", "Certificate (PEM) of this process; TLS for the control plane needs all three files.", unit="path"
    )
    tls_key: str = _setting("", "Private key (PEM) of `tls_cert`.", unit="path")
    tls_ca: str = _setting(
        "",
        "Certificate authority (PEM) that signed every process's certificate; make one for the job.",
        unit="path",
    )
    encrypt_data: bool = _setting(
        False, "Encrypt the data links too; an error where this machine cannot (then use WireGuard)."
    )
    communicator: str = _setting(
        "parameter-server",
        "What sums: servers, or the workers among themselves by the framework's all-reduce (allreduce.md).",
        choices=("parameter-server", "allreduce"),
        aliases=(("ps", "parameter-server"), ("all-reduce", "allreduce")),
    )
    transport: str = _setting(
        "auto",
        "How bytes travel between worker and server. `auto`: through shared memory where both are on one "
        "host, else by TCP. `shm`: an error where memory cannot be shared. `ucx`: through UCX, for RDMA; its "
        "own variables (`UCX_TLS`, `UCX_NET_DEVICES`, ...) choose the devices.",
        choices=("auto", "tcp", "shm", "ucx"),
        aliases=(("shared-memory", "shm"), ("shared_memory", "shm"), ("rdma", "ucx")),
    )
    transport_polling: bool = _setting(
        False,
        "With `transport = ucx`: never sleep in wait for messages. Saves some microseconds each, and takes a "
        "core of its own for each connection thread.",
    )
    collective_bytes: int = _setting(
        0,
        "Bytes of one collective with `communicator = allreduce`: larger tensors are cut, smaller fused. "
        "0: from the measured latency and rate.",
        unit="bytes",
        high=1 << 30,
    )
    partition_bytes: int = _setting(
        0,
        "Largest part of a tensor that is placed and sent as one unit. "
        "Rounded up to multiples of 16 KiB; at most 64 MiB. 0: 128 KiB.",
        unit="bytes",
    )
    credit_bytes: int = _setting(
        0,
        "Bytes a worker may have in flight; 0: from the measured rate and round-trip time, 16 MiB at most.",
        unit="bytes",
    )
    connections: int = _setting(
        0,
        "Connections per worker and server, each with its own I/O thread at both ends. 0: one; over TCP, "
        "where each worker has a host to itself, a second once that is worth it (`connection_rate`).",
        high=64,
    )
    connection_rate: float = _setting(
        1.5e9,
        "With `connections` automatic: what one connection must be seen to move before a second one is used. "
        "Read by the coordinator.",
        unit="bytes per second",
    )
    scheduling: str = _setting(
        "priority",
        "Order of sending: most urgent first, first come first served, or one partition at a time.",
        choices=("priority", "fifo", "stop-and-wait"),
    )
    tune: bool = _setting(
        False,
        "Search for better sizes of partitions, credit and frames while training goes on (tuning.md). Needs "
        "optuna: `pip install 'byteps[tune]'`.",
    )
    tune_search: str = _setting(
        "bayes",
        "What proposes the sizes to try next: a model of what was measured, chance, or all in order.",
        choices=("bayes", "random", "grid"),
    )
    tune_trials: int = _setting(30, "Sizes that a search tries at most.", low=1, high=1 << 20)
    tune_window: int = _setting(
        6, "Steps that each is measured for, after two that do not count.", unit="steps", low=2, high=1 << 20
    )
    tune_results: str = _setting(
        "",
        "Folder for trials and results, which later jobs of the same model, world and link begin with; "
        "read by the coordinator. Empty: `~/.cache/byteps/tuning`.",
        unit="path",
    )
    deterministic: bool = _setting(
        False, "Add contributions in rank order whatever order they arrive in: bitwise equal from run to run."
    )
    hierarchical: str = _setting(
        "auto",
        "Whether ranks of one node sum in shared memory before anything leaves it (hierarchy.md). `auto`: "
        "where ranks share a node and have memory for it; `on`: it is an error if they have not.",
        choices=("auto", "on", "off"),
        aliases=(("1", "on"), ("0", "off")),
    )
    node_collectives: str = _setting(
        "off",
        "With byteps.torch: what sums tensors of 64 KiB and more among the ranks of one node, before each "
        "pushes a share (hierarchy.md). `nccl`: on their GPUs. `auto`: that, where each rank has a GPU for "
        "itself and the script a process group of NCCL. `gloo`: in host memory. `off`: as `hierarchical`.",
        choices=("off", "auto", "nccl", "gloo"),
    )
    numa_on: bool = _setting(
        True,
        "Have `byteps run` and `bpslaunch` keep processes on the NUMA nodes of their GPUs and network cards, "
        "where they lose no CPUs by that (topology.md).",
    )
    numa_default_quota: int = _setting(
        0, "Cores for each worker alone, on its node; 0: workers of a node share its CPUs.", high=_MAX_NUMBER
    )
    numa_root_quota: int = _setting(
        0, "Cores for the last worker of each machine; 0: as the others.", high=_MAX_NUMBER
    )
    numa_id: int = _setting(
        -1, "NUMA node for all processes started here; -1: by their devices.", low=-1, high=_MAX_NUMBER
    )
    visible_cpu_cores: str = _setting(
        "",
        "CPUs of each process started here, such as `1,4-5:20-25`: workers, then servers. Empty: planned.",
        unit="CPUs, `:` between processes,",
    )
    cpu_blacklist: str = _setting(
        "", "CPUs that no process started here may use, such as `0,32`; `-1` for none.", unit="CPUs"
    )
    multithreaded_cpu: bool = _setting(True, "Use every hardware thread of a core; 0: the first one only.")
    force_distributed: bool = _setting(False, "Use the servers even with one worker.")
    join_timeout_s: float = _setting(
        600.0, "How long to wait for processes that have not come yet.", unit="s"
    )
    peer_timeout_s: float = _setting(
        30.0, "A process is lost after this long without a heartbeat.", unit="s", low=0.01
    )
    stall_timeout_s: float = _setting(0.0, "Give up on a live rank that is this late; 0: never.", unit="s")
    stall_warning_s: float = _setting(
        10.0, "Log which tensor waits for which rank after this long; 0: never.", unit="s"
    )
    heartbeat_s: float = _setting(1.0, "Time between two heartbeats.", unit="s", low=0.01)
    timeline: str = _setting(
        "",
        "Record a timeline for Perfetto: `run.json.gz` becomes `run.rank0.json.gz`, `run.server0.json.gz` "
        "and so on; empty: none; `DYNAMIC`: none until the program calls `start_timeline(file)`. As an "
        "argument of `init()` also `trace=`.",
        unit="path",
    )
    trace_start_step: int = _setting(
        0, "First step of the timeline, counted from 1; 0: from the start.", high=_MAX_NUMBER
    )
    trace_end_step: int = _setting(0, "Last step of the timeline; 0: no end.", high=_MAX_NUMBER)
    log_level: str = _setting(
        "warning",
        "Least severe message that is logged.",
        choices=("trace", "debug", "info", "warning", "error", "fatal"),
    )
    log_hide_time: bool = _setting(False, "Leave the time out of log lines.")

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            validate(field, getattr(self, field.name), f"Config.{field.name}")


FIELDS: dict[str, dataclasses.Field[Any]] = {field.name: field for field in dataclasses.fields(Config)}
"""The fields by name, in the order of documentation."""
