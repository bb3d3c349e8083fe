"""Where the processes of a job run: every thread of workers and servers, as the kernel has it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from byteps.topology.cpus import format_cpus

from .jobs import Job, run_byteps

CPUS = sorted(os.sched_getaffinity(0))
FIRST, LAST = str(CPUS[0]), str(CPUS[-1])
ALL = format_cpus(CPUS)

# Joins, so that the I/O threads of both ends run, and then looks at all processes of the job.
PROGRAM = """
import os, pathlib
from byteps.config import resolve
from byteps.joining import connect

session = connect(resolve().config)
session.barrier()
marker = b"BPS_TEST_MARKER=" + os.environb[b"BPS_TEST_MARKER"]
for folder in pathlib.Path("/proc").glob("[0-9]*") if session.rank == 0 else ():
    try:
        variables = (folder / "environ").read_bytes().split(b"\\0")
        words = (folder / "cmdline").read_bytes().decode().split("\\0")
        statuses = [path.read_text() for path in folder.glob("task/*/status")]
    except OSError:
        continue
    if marker not in variables or "run" in words:
        continue
    rank = next((each[12:].decode() for each in variables if each.startswith(b"BYTEPS_RANK=")), "")
    role = next((word for word in words if word in ("server", "coordinator")), "worker")
    lines = [line for text in statuses for line in text.splitlines() if "Cpus_allowed_list" in line]
    print(role, rank, len(lines) > 1, *sorted({line.split()[1] for line in lines}))
session.barrier()
session.shutdown()
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    return path


def _places(job: Job) -> tuple[dict[str, str], str]:
    """The CPUs of each process's threads, and what the launcher said."""
    code, output, errors = job.finish()
    assert code == 0, errors
    found = {}
    for line in output.splitlines():
        role, *rank, has_threads, cpus = line.removeprefix("[worker 0] ").split(" ")
        assert has_threads == "True" or role == "coordinator"
        found[" ".join([role, *filter(None, rank)])] = cpus
    return found, errors


def test_each_process_runs_where_it_is_told_to(program: Path) -> None:
    told = f"{FIRST}:{LAST}:{LAST}"
    job = run_byteps(
        *("run", "-np", "2", "--servers", "2", "--visible-cpu-cores", told, "--log-level", "info"),
        str(program),
    )
    found, errors = _places(job)
    assert found == {
        "worker 0": FIRST,
        "worker 1": LAST,
        "server 0": LAST,
        "server 1": ALL,
        "coordinator": ALL,
    }
    assert f"worker 0: node 0, CPUs {FIRST}: visible_cpu_cores" in errors
    assert "server 1: not pinned: visible_cpu_cores has no section for it" in errors


def test_nobody_runs_on_a_cpu_that_is_held_back(program: Path) -> None:
    if len(CPUS) < 2:
        pytest.skip("needs two CPUs")
    job = run_byteps("run", "-np", "2", str(program), environment={"BYTEPS_CPU_BLACKLIST": FIRST})
    rest = format_cpus(CPUS[1:])
    roles = ("worker 0", "worker 1", "server 0", "server 1", "coordinator")
    assert _places(job)[0] == dict.fromkeys(roles, rest)


def test_bpslaunch_gives_quotas(tmp_path: Path) -> None:
    path = tmp_path / "show.py"
    path.write_text("import os\nprint(*os.sched_getaffinity(0), os.environ.get('OMP_NUM_THREADS'))\n")
    count = min(2, len(CPUS))
    job = Job(
        [sys.executable, "-c", "import sys, byteps.launch.bpslaunch as b; sys.exit(b.main())", str(path)],
        {
            "DMLC_ROLE": "worker",
            "DMLC_NUM_WORKER": "2",
            "DMLC_NUM_SERVER": "1",
            "DMLC_WORKER_ID": "0",
            "DMLC_PS_ROOT_URI": "127.0.0.1",
            "DMLC_PS_ROOT_PORT": "1",
            "BYTEPS_LOCAL_SIZE": str(count),
            "BYTEPS_NUMA_DEFAULT_QUOTA": "1",
        },
    )
    code, output, errors = job.finish()
    assert code == 0, errors
    places = [line.split("] ")[-1].split() for line in sorted(output.splitlines())]
    assert [place[0] for place in places] == [str(cpu) for cpu in CPUS[:count]]
    assert all(place[1:] in (["1"], ["None"]) for place in places)


def test_a_quota_that_cannot_be_is_refused(tmp_path: Path) -> None:
    job = run_byteps("run", "-np", "2", "true", environment={"BYTEPS_NUMA_DEFAULT_QUOTA": "100000"})
    code, _, errors = job.finish()
    assert code == 2
    assert "numa_default_quota and numa_root_quota want 200000 cores for 2 workers" in errors
