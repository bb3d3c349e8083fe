"""What settings are called in the environment: our names, other tools' names, and names without meaning."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

from byteps.config.fields import FIELDS

PREFIX = "BYTEPS_"


def variable(field: str) -> str:
    """The environment variable of a field: ``peer_timeout_s`` is set by ``BYTEPS_PEER_TIMEOUT_S``."""
    return PREFIX + field.upper()


def spellings(field: str) -> tuple[str, ...]:
    """The variables that set a field, the documented one first; durations also go without their unit."""
    if not FIELDS[field].metadata["variable"]:
        return ()
    name = variable(field)
    return (name, name.removesuffix("_S")) if field.endswith("_s") else (name,)


ARGUMENTS = {"trace": "timeline"}
"""Other names that an argument of ``init()`` may have, and the fields they set."""

OLD_NAMES: tuple[tuple[str, str], ...] = (
    ("DMLC_ROLE", "role"),
    ("DMLC_NUM_SERVER", "num_servers"),
    ("DMLC_INTERFACE", "interface"),
    ("DMLC_NODE_HOST", "advertise_host"),
    ("BYTEPS_GLOBAL_RANK", "rank"),
    ("BYTEPS_SCHEDULING_CREDIT", "credit_bytes"),
    ("BYTEPS_SERVER_ENGINE_THREAD", "connections"),
    ("HOROVOD_GLOO_IFACE", "interface"),
    ("HOROVOD_START_TIMEOUT", "join_timeout_s"),
    ("HOROVOD_STALL_CHECK_TIME_SECONDS", "stall_warning_s"),
    ("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "stall_timeout_s"),
    ("HOROVOD_TIMELINE", "timeline"),
    ("HOROVOD_LOG_LEVEL", "log_level"),
    ("HOROVOD_LOG_HIDE_TIME", "log_hide_time"),
)
"""Names of BytePS and Horovod that set one field each. Where two set the same, the first counts."""

COMPUTED_NAMES: tuple[tuple[str, str], ...] = (
    (
        "DMLC_NUM_WORKER",
        "`size` = `DMLC_NUM_WORKER` x `BYTEPS_LOCAL_SIZE` (it counts machines, not processes)",
    ),
    ("DMLC_WORKER_ID", "`rank` = `DMLC_WORKER_ID` x `BYTEPS_LOCAL_SIZE` + `BYTEPS_LOCAL_RANK`"),
    (
        "DMLC_PS_ROOT_URI",
        "host of `coordinator`; for the coordinator itself also `bind_host`",
    ),
    ("DMLC_PS_ROOT_PORT", "port of `coordinator`; for the coordinator itself also `port`"),
    ("DMLC_USE_KUBERNETES", "with 1 a coordinator listens on all addresses"),
    (
        "BYTEPS_TRACE_ON",
        "with 1 `timeline` is `timeline.json.gz` in `BYTEPS_TRACE_DIR`, and the steps are 10 to 20 unless "
        "`BYTEPS_TRACE_START_STEP` and `BYTEPS_TRACE_END_STEP` say otherwise",
    ),
    ("BYTEPS_ENABLE_IPC", "`transport`: with 1 `auto`, with 0 `tcp`"),
    ("DMLC_ENABLE_RDMA", "`transport = ucx`, with `1`, `ucx` or `ibverbs`"),
    ("DMLC_ENABLE_UCX", "`transport = ucx`, with `1`"),
    ("BYTEPS_TRACE_DIR", "folder of that timeline, `./trace` if not set"),
)
"""Names of BytePS that are combined with others, and what comes of them."""

IGNORED_NAMES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "use `visible_cpu_cores`",
        ("HOROVOD_THREAD_AFFINITY",),
    ),
    ("start the debugger around the training command", ("BYTEPS_ENABLE_GDB",)),
    (
        "every process talks to the servers itself",
        (
            "BYTEPS_PCIE_SWITCH_SIZE",
            "BYTEPS_REDUCE_ROOTS",
            "BYTEPS_NCCL_*",
            "BYTEPS_SOCKET_PATH",
            "HOROVOD_HIERARCHICAL_*",
            "HOROVOD_TORUS_*",
            "HOROVOD_NUM_NCCL_STREAMS",
        ),
    ),
    ("use `connections`", ("BYTEPS_OMP_THREAD_PER_GPU", "BYTEPS_THREADPOOL_SIZE")),
    (
        "placement goes by load and by machine",
        ("BYTEPS_KEY_HASH_FN", "BYTEPS_BUILT_IN_HASH_COEF", "BYTEPS_*MIXED_MODE*"),
    ),
    ("training is synchronous", ("BYTEPS_ENABLE_ASYNC",)),
    ("compression is chosen by argument", ("BYTEPS_MIN_COMPRESS_BYTES",)),
    ("choose the steps of the timeline", ("HOROVOD_TIMELINE_*",)),
    ("speed is always recorded", ("BYTEPS_TELEMETRY_*",)),
    ("use `log_level`", ("BYTEPS_DEBUG_SAMPLE_TENSOR", "BYTEPS_SERVER_DEBUG*", "PS_VERBOSE", "PS_KEY_LOG")),
    ("servers always answer in priority order", ("BYTEPS_SERVER_ENABLE_SCHEDULE",)),
    ("servers never block on one worker", ("BYTEPS_SERVER_ENGINE_BLOCKING",)),
    (
        "the transport is another",
        (
            "BYTEPS_ZMQ_*",
            "BYTEPS_IPC_*",
            "BYTEPS_*RDMA_*",
            "BYTEPS_UCX_*",
            "PSLITE_UCX_*",
            "DMLC_ENABLE_*",
            "DMLC_LOCKLESS_QUEUE",
            "DMLC_POLLING_IN_NANOSECOND",
            "DMLC_LOCAL",
            "DMLC_GROUP_SIZE",
            "DMLC_NUM_*_DEV",
        ),
    ),
    ("there is no such limit", ("BYTEPS_ADDRESS_POOL_SIZE",)),
    ("give ranks", ("BYTEPS_ORDERED_HOSTS", "DMLC_RANK")),
    ("the kernel chooses ports", ("DMLC_*PORT*",)),
    ("use `heartbeat_s` and `peer_timeout_s`", ("PS_HEARTBEAT_*",)),
    ("TCP resends", ("PS_RESEND*",)),
    ("emulate a lossy network with tc", ("PS_DROP_MSG",)),
    ("nothing is built against it", ("BYTEPS_CUDA_*", "BYTEPS_WITH*", "BYTEPS_USE_MPI")),
    ("it counts where byteps is built", ("BYTEPS_USE_RDMA",)),
    ("tensors are sent as they become ready", ("HOROVOD_CYCLE_TIME",)),
    (
        "tensors are partitioned, not fused",
        ("HOROVOD_FUSION_THRESHOLD", "HOROVOD_*GROUP_FUSION", "HOROVOD_BATCH_D2D_MEMCOPIES"),
    ),
    ("tensors are declared once", ("HOROVOD_CACHE_CAPACITY",)),
    ("use `tune`", ("HOROVOD_AUTOTUNE*",)),
    ("use `stall_warning_s` = 0", ("HOROVOD_STALL_CHECK_DISABLE",)),
    ("use `peer_timeout_s`", ("HOROVOD_GLOO_TIMEOUT_SECONDS",)),
    ("membership is fixed", ("HOROVOD_ELASTIC*",)),
    ("process sets can always be added", ("HOROVOD_DYNAMIC_PROCESS_SETS",)),
    ("there is no such mode", ("HOROVOD_ENABLE_*",)),
)
"""What to know or do instead, and the patterns of names of other tools that have no meaning here."""

# Kubernetes describes every Service of a namespace in such variables; one called "byteps-..." is likely.
_SERVICE_LINK = re.compile(r"BYTEPS_(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_\w+)?)")


def is_ignored(name: str) -> bool:
    """Whether a variable is an old name without meaning."""
    known = {old for old, _ in (*OLD_NAMES, *COMPUTED_NAMES)}
    return name not in known and any(
        fnmatchcase(name, pattern) for _, patterns in IGNORED_NAMES for pattern in patterns
    )


def is_unknown(name: str, value: str) -> bool:
    """Whether a variable looks like a setting of byteps but is none."""
    if not name.startswith(PREFIX) or (_SERVICE_LINK.fullmatch(name) and name != "BYTEPS_PORT"):
        return False
    if name == "BYTEPS_PORT" and value.startswith(("tcp://", "udp://")):
        return False
    known = {spelling for field in FIELDS for spelling in spellings(field)}
    known |= {old for old, _ in (*OLD_NAMES, *COMPUTED_NAMES)}
    return name not in known and not is_ignored(name)
