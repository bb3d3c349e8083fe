"""Who a process is, as the launcher that started it says: BytePS, torchrun, Horovod, MPI, Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest

from byteps.config import Config, resolve


@pytest.fixture(autouse=True)
def empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def found(**environ: str) -> Config:
    return resolve(environ=environ).config


def identity(config: Config) -> tuple[int, int, int, int]:
    return config.rank, config.size, config.local_rank, config.local_size


# BytePS's way to start

DMLC = {"DMLC_NUM_WORKER": "2", "DMLC_PS_ROOT_URI": "10.0.0.1", "DMLC_PS_ROOT_PORT": "80"}


def test_dmlc_counts_machines() -> None:
    local = {"BYTEPS_LOCAL_SIZE": "4", "BYTEPS_LOCAL_RANK": "3"}
    config = found(**DMLC, **local, DMLC_WORKER_ID="1", DMLC_NUM_SERVER="3", DMLC_ROLE="worker")
    assert identity(config) == (7, 8, 3, 4)
    assert (config.nodes, config.node_rank, config.num_servers) == (2, 1, 3)
    assert (config.coordinator, config.launcher) == ("10.0.0.1:80", "dmlc")
    assert (config.bind_host, config.port) == ("", 0)
    assert found(**DMLC, **local, DMLC_WORKER_ID="1", BYTEPS_GLOBAL_RANK="5").rank == 5


def test_one_dmlc_worker_needs_nothing_else() -> None:
    assert identity(found(DMLC_NUM_WORKER="1")) == (0, 1, 0, 1)
    assert identity(found(DMLC_NUM_WORKER="1", BYTEPS_LOCAL_SIZE="2", BYTEPS_LOCAL_RANK="1")) == (1, 2, 1, 2)


def test_dmlc_without_a_worker_id_lets_the_coordinator_choose() -> None:
    config = found(**DMLC)
    assert (config.rank, config.size) == (-1, 2)


def test_the_dmlc_scheduler_listens_at_the_root_address() -> None:
    config = found(**DMLC, DMLC_ROLE="scheduler")
    assert (config.role, config.bind_host, config.port) == ("coordinator", "10.0.0.1", 80)
    assert (config.size, config.rank) == (0, -1)
    assert found(**DMLC, DMLC_ROLE="scheduler", BYTEPS_LOCAL_SIZE="4").size == 8
    assert found(**DMLC, DMLC_ROLE="scheduler", DMLC_USE_KUBERNETES="1").bind_host == "0.0.0.0"
    assert found(**{**DMLC, "DMLC_PS_ROOT_URI": "fd00::1"}).coordinator == "[fd00::1]:80"


def test_other_old_names() -> None:
    config = found(
        DMLC_NODE_HOST="gpu-3",
        BYTEPS_SERVER_ENGINE_THREAD="8",
        BYTEPS_FORCE_DISTRIBUTED="1",
        HOROVOD_GLOO_IFACE="ib0",
        HOROVOD_STALL_CHECK_TIME_SECONDS="60",
        HOROVOD_LOG_LEVEL="TRACE",
    )
    assert (config.advertise_host, config.connections, config.force_distributed) == ("gpu-3", 8, True)
    assert (config.interface, config.stall_warning_s, config.log_level) == ("ib0", 60.0, "trace")


# Launchers

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "TORCHELASTIC_RUN_ID": "none",
}
HOROVOD = {
    "HOROVOD_RANK": "5",
    "HOROVOD_SIZE": "8",
    "HOROVOD_LOCAL_RANK": "1",
    "HOROVOD_LOCAL_SIZE": "4",
}
OPEN_MPI = {f"OMPI_COMM_WORLD_{key[8:]}": value for key, value in HOROVOD.items()}
SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS_PER_NODE": "4",
    "SLURM_NODEID": "1",
    "SLURM_NNODES": "2",
}
INTEL_MPI = {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}


@pytest.mark.parametrize(
    ("launcher", "environ"),
    [
        ("torchrun", TORCHRUN),
        ("horovod", HOROVOD),
        ("mpi", OPEN_MPI),
        ("mpi", INTEL_MPI),
        ("slurm", SLURM),
        ("slurm", {key: SLURM[key] for key in SLURM if key not in ("SLURM_JOB_ID", "SLURM_STEP_ID")}),
        ("torchrun", {**SLURM, "SLURM_PROCID": "0", "SLURM_NTASKS": "2", **TORCHRUN}),
        ("mpi", {**SLURM, "SLURM_PROCID": "0", "SLURM_NTASKS": "2", **OPEN_MPI}),
        ("torchrun", {**TORCHRUN, "DMLC_NUM_WORKER": "2"}),
    ],
)
def test_launchers_give_the_identity(launcher: str, environ: dict[str, str]) -> None:
    config = found(**environ)
    assert identity(config) == (5, 8, 1, 4)
    assert config.launcher == launcher
    if launcher in ("torchrun", "slurm"):
        assert (config.nodes, config.node_rank) == (2, 1)


def test_our_own_names_silence_every_launcher() -> None:
    config = found(**TORCHRUN, BYTEPS_RANK="0", BYTEPS_SIZE="2")
    assert (config.rank, config.size, config.local_rank, config.nodes) == (0, 2, -1, 0)
    assert config.launcher == "byteps"
    half = found(**TORCHRUN, BYTEPS_LOCAL_RANK="3")
    assert (half.rank, half.local_rank, half.launcher) == (5, 3, "torchrun")


@pytest.mark.parametrize(
    ("extra", "launcher"),
    [({"BYTEPS_COORDINATOR": "10.0.0.1:80"}, "byteps"), (DMLC, "dmlc"), ({}, "torchrun")],
)
def test_torchrun_with_a_known_coordinator_needs_no_store(extra: dict[str, str], launcher: str) -> None:
    config = found(**TORCHRUN, **extra)
    assert (config.rank, config.size, config.launcher) == (5, 8, launcher)


@pytest.mark.parametrize("step", ["", "4294967291", "4294967290"])
def test_a_batch_script_is_no_slurm_task(step: str) -> None:
    config = found(**{**SLURM, "SLURM_PROCID": "0", "SLURM_STEP_ID": step})
    assert (config.rank, config.size, config.launcher) == (0, 1, "")


@pytest.mark.parametrize(
    ("listed", "node", "expected"), [("2(x3),1", "2", 2), ("2(x3),1", "3", 1), ("4", "0", 4), ("", "0", 4)]
)
def test_slurm_lists_tasks_by_node(listed: str, node: str, expected: int) -> None:
    environ = {**SLURM, "SLURM_NODEID": node, "SLURM_NNODES": "4", "SLURM_STEP_TASKS_PER_NODE": listed}
    environ["SLURM_LOCALID"] = "0"
    assert found(**environ).local_size == expected


def test_only_workers_have_an_identity() -> None:
    config = found(**SLURM, BYTEPS_ROLE="server")
    assert (config.rank, config.size, config.launcher) == (-1, 0, "")


def test_with_a_coordinator_the_size_may_stay_open() -> None:
    config = found(BYTEPS_COORDINATOR="10.0.0.1:80")
    assert (config.rank, config.size) == (-1, 0)
