"""``byteps doctor`` as a user runs it: on one host, in a job of its own, in place of the training script."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .jobs import Job, run_byteps

DOCTOR = (sys.executable, "-m", "byteps", "doctor")
PAIR = re.compile(r"OK +worker (\d) -> server (\d) +\d+\.\d+ ms, \d+\.\d+ GB/s each way$")


def pairs(output: str) -> set[tuple[str, str]]:
    """Workers and servers that exchanged data."""
    found = (PAIR.search(line) for line in output.splitlines())
    return {(match[1], match[2]) for match in found if match}


def test_a_job_of_its_own_tries_every_pair() -> None:
    job = run_byteps("doctor", "--np", "2", "--servers", "3")
    code, output, errors = job.finish()
    assert (code, errors) == (0, ""), output
    assert pairs(output) == {(worker, server) for worker in "01" for server in "012"}
    assert "2 workers and 3 servers reach it" in output
    assert output.splitlines()[-1].endswith("0 WARN, 0 FAIL")
    assert not job.offspring()


def test_one_worker_and_its_server_are_a_pair_as_well() -> None:
    code, output, _ = run_byteps("doctor", "--np", "1", "--json").finish()
    report = json.loads(output)
    assert code == 0
    assert report["ok"] is True
    (pair,) = report["pairs"]
    assert (pair["worker"], pair["server"]) == (0, 0)
    assert 0 < pair["latency_s"] < 1
    assert pair["bytes_per_s"] > 1e6


def test_workers_without_servers_are_tried_all_together() -> None:
    job = run_byteps("doctor", "--np", "3", "--communicator", "allreduce")
    code, output, errors = job.finish()
    assert (code, errors) == (0, ""), output
    assert "3 workers and 0 servers reach it" in output
    assert re.search(
        r"^OK +all-reduce +3 workers sum 4 bytes in \d+\.\d+ ms, 16\.0 MiB at \d", output, re.MULTILINE
    )
    assert output.splitlines()[-1].endswith("0 WARN, 0 FAIL")


def test_in_place_of_the_script_under_byteps_run() -> None:
    job = run_byteps("run", "-np", "2", "--servers", "1", "--", *DOCTOR)
    code, output, errors = job.finish()
    assert (code, errors) == (0, "")
    assert pairs(output) == {("0", "0"), ("1", "0")}
    assert all(line.startswith("[worker 0]") for line in output.splitlines()), "rank 0 speaks for all"


def test_in_place_of_the_script_under_torchrun() -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    job = Job([*torchrun, "-m", "byteps", "doctor"], {"OMP_NUM_THREADS": "1"})
    code, output, errors = job.finish()
    assert code == 0, errors
    assert pairs(output) == {("0", "0"), ("1", "0")}


def test_local_joins_no_job() -> None:
    job = run_byteps("run", "-np", "2", "--servers", "1", "--", *DOCTOR, "--local", "--json")
    code, output, _ = job.finish()
    assert code == 0
    reports = [json.loads(line.split(" ", 2)[2]) for line in output.splitlines()]
    assert [report["pairs"] for report in reports] == [[], []]


def test_a_job_that_never_comes_together_is_said_soon() -> None:
    job = run_byteps("run", "-np", "2", "--servers", "1", "--join-timeout-s", "1", "--", "sh", "-c", SOLO)
    code, output, _ = job.finish()
    assert code == 1
    assert re.search(r"FAIL +job +.*did not start within 1 s: it waited for worker rank 1", output)


SOLO = f'[ "$BYTEPS_RANK" = 1 ] && exec sleep 20; exec {" ".join(DOCTOR)}'


@pytest.fixture
def coordinator() -> Iterator[str]:
    """Address of a coordinator that waits for its members."""
    job = run_byteps(
        *("coordinator", "--num-workers", "2", "--num-servers", "1"),
        environment={"BYTEPS_AUTH_TOKEN": "x" * 32},
    )
    assert job.popen.stdout is not None
    yield job.popen.stdout.readline().split("=")[1].strip()
    job.popen.terminate()
    job.finish()


@pytest.mark.parametrize(
    ("token", "words", "code", "text"),
    [
        ("x" * 32, [], 0, r"OK +coordinator +\S+ accepts this host"),
        ("x" * 32, [], 0, r"OK +clock there +the coordinator's is [+-]0\.0\d\d s from this one"),
        ("y" * 32, [], 1, r"FAIL +coordinator +.*the token of the coordinator is not this process's"),
        ("x" * 32, ["--job-id", "other"], 1, r"FAIL +coordinator +.*belongs to job 'other'"),
    ],
    ids=["reachable", "clock", "wrong token", "wrong job"],
)
def test_the_coordinator_is_asked(
    coordinator: str, token: str, words: list[str], code: int, text: str
) -> None:
    environment = {"BYTEPS_AUTH_TOKEN": token, "BYTEPS_COORDINATOR": coordinator}
    found, output, errors = run_byteps("doctor", *words, environment=environment).finish()
    assert (found, errors) == (code, "")
    assert re.search(text, output), output


def test_each_finding_but_ok_has_advice(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("short")
    environment = {"BYTEPS_AUTH_TOKEN_FILE": str(token), "BYTEPS_PARTITON_BYTES": "1", "BYTEPS_ZMQ_X": "1"}
    code, output, _ = run_byteps("doctor", "--interface", "none0", "--json", environment=environment).finish()
    assert code == 1
    found = json.loads(output)["findings"]
    assert {one["check"] for one in found if one["level"] == "FAIL"} == {"addresses"}
    assert [one["check"] for one in found if one["level"] == "WARN"] == ["variables", "variables", "token"]
    assert all(bool(one["advice"]) == (one["level"] != "OK") for one in found)
    assert any("did you mean BYTEPS_PARTITION_BYTES?" in one["text"] for one in found)
