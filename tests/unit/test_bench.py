"""``byteps bench``: what its options mean, the sums that it expects, its tables, and who the servers are."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from byteps.bench import report, usage, values
from byteps.bench.plan import parse_dtypes, parse_sizes
from byteps.bench.progress import Progress
from byteps.cli import main
from byteps.dtypes import DType
from byteps.errors import BytePSError, ConfigError
from byteps.launch import local
from byteps.wire import ServerAddress

NUMERIC = [dtype for dtype in DType if dtype is not DType.BOOL]


@pytest.mark.parametrize(
    ("words", "sizes"),
    [
        (["4096"], [4096]),
        (["1M,4K"], [4 << 10, 1 << 20]),
        (["4K:256K"], [4 << 10, 16 << 10, 64 << 10, 256 << 10]),
        (["1K:5K:2", "2KiB"], [1 << 10, 2 << 10, 4 << 10]),
        (["1gb"], [1 << 30]),
    ],
)
def test_sizes(words: list[str], sizes: list[int]) -> None:
    assert parse_sizes(words) == sizes


@pytest.mark.parametrize("word", ["", "0", "4X", "-1", "4K:1K", "1:2:1", "1:2:3:4", "1:2:x", "1.5M"])
def test_what_is_no_size_is_said(word: str) -> None:
    with pytest.raises(ConfigError, match="sizes"):
        parse_sizes([word])


def test_dtypes() -> None:
    assert parse_dtypes(["Float16,int8", "float16"]) == [DType.FLOAT16, DType.INT8]
    with pytest.raises(ConfigError, match="'bool' cannot be measured; choose from float64"):
        parse_dtypes(["bool"])


@pytest.mark.parametrize("dtype", NUMERIC)
def test_expected_sums_are_those_of_the_contributions(dtype: DType) -> None:
    total = np.zeros(10, np.float64)
    for rank in range(3):
        array = np.empty(10, values.storage(dtype))
        values.fill(array, dtype, rank)
        widened = (array.astype(np.uint32) << 16).view(np.float32) if dtype is DType.BFLOAT16 else array
        total += widened
    period = values.expected(3, dtype)
    if dtype is DType.BFLOAT16:
        period = (period.astype(np.uint32) << 16).view(np.float32)
    assert np.array_equal(total, np.resize(period, 10))
    assert len(set(total[: values.PERIOD])) > 1, "values that are all the same would hide what is misplaced"


def test_expected_sums_wrap_and_round_as_servers_do() -> None:
    assert values.expected(100, DType.INT8)[0] == 150 - 256
    # 261 and 262 are halfway, or not, between bfloat16's neighbours 260, 262 and 264.
    sums = (values.expected(174, DType.BFLOAT16).astype(np.uint32) << 16).view(np.float32)
    exact = values.expected(174, DType.FLOAT64)
    assert exact.max() > 256
    assert np.all(np.abs(sums - exact) <= 1)
    assert np.all(sums % 2 == 0)


@pytest.mark.parametrize("index", [0, 5, 6])
def test_the_first_wrong_element_is_found(index: int) -> None:
    array = np.empty(7, np.float32)
    values.fill(array, DType.FLOAT32, 1)
    period = values.expected(1, DType.FLOAT32)
    values.fill(array, DType.FLOAT32, 0)
    assert values.first_difference(array, period) == -1
    array[index:] += 1
    assert values.first_difference(array, period) == index


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_process_behind_an_address_is_found(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listener:
        port = listener.getsockname()[1]
        addresses = [ServerAddress("192.0.2.1", port), ServerAddress(host, port)]
        assert usage.local_servers(addresses) == {}, "nothing is connected yet"
        with socket.create_connection((host, port)), listener.accept()[0]:
            assert usage.local_servers(addresses) == {1: os.getpid()}


def test_where_proc_says_nothing_no_server_is_known(tmp_path: Path) -> None:
    assert usage.local_servers([ServerAddress("127.0.0.1", 1)], tmp_path) == {}


def test_the_cpu_time_of_another_process() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "sum(range(10**6)); print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert 0.001 < usage.cpu_seconds(child.pid) < 30
        child.communicate(b"\n")


def _report(**changes: object) -> dict[str, object]:
    row = {
        "dtype": "float32",
        "bytes": 65536,
        "median_s": 1e-3,
        "p95_s": 2.0,
        "gb_per_s": 0.0655,
        "share_of_limit": 0.5,
        "server_cpu_s_per_gb": None,
    }
    return {
        "bench": "pushpull",
        "workers": 2,
        "servers": 2,
        "iterations": 1,
        "limit": {"gb_per_s": 0.131, "from": "--link-gbit 1"},
        "servers_beside_workers": 0,
        "latency": [{"dtype": "float32", "median_s": 2e-4, "p95_s": 3e-4}],
        "rows": [row],
        **changes,
    }


def test_the_table() -> None:
    text = list(report.lines(_report()))
    assert text[3].split() == ["float32", "64.0", "KiB", "1", "ms", "2", "s", "0.066", "50", "%", "-"]
    assert "latency (one float32): 200 us median, 300 us p95" in text
    assert "limit: 0.131 GB/s each way per worker (--link-gbit 1)" in text
    assert text[-1].startswith("server CPU: unknown")


@pytest.mark.parametrize(
    ("seen", "end"), [(2, "that reached the servers"), (1, "1 of 2 servers, those on the workers' hosts")]
)
def test_it_says_which_servers_count(seen: int, end: str) -> None:
    assert list(report.lines(_report(servers_beside_workers=seen)))[-1].endswith(end)


def test_a_report_that_cannot_be_written_is_said_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(BytePSError, match="No such file or directory; choose another --json file"):
        report.check_target(str(tmp_path / "none" / "report.json"))
    report.check_target("-")
    report.check_target(None)


def test_progress_is_lines_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    for shown in (True, False):
        with Progress("bench", 2, shown=shown) as progress:
            progress.begin("first")
            progress.begin("second")
    assert capsys.readouterr().err.splitlines() == ["bench: 1 of 2: first", "bench: 2 of 2: second"]


@pytest.mark.parametrize(
    ("words", "passed"),
    [
        (
            "pushpull --sizes 4K:1M:16 --dtypes int8,float32 --warmup 0 --link-gbit 10",
            "--sizes 4096 65536 1048576 --dtypes int8 float32 --iterations 20 --warmup 0 --link-gbit 10.0",
        ),
        (
            "train --model tiny --batch-size 3 --warmup 0 --device cpu",
            "--model tiny --batch-size 3 --sequence-length 128 --steps 10 --blocks 5 --warmup 0 --device cpu",
        ),
    ],
)
def test_the_job_that_it_starts_measures_the_same(
    words: str, passed: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[local.Job] = []

    def launch(job: local.Job) -> int:
        jobs.append(job)
        report.hand_over({"answer": 42}, Path(job.command[-1]))
        return 0

    monkeypatch.setattr(local, "launch", launch)
    code = main(["bench", *words.split(), "--np", "3", "--servers", "1", "--scheduling", "fifo", "--json"])
    assert code == 0
    assert json.loads(capsys.readouterr().out) == {"answer": 42}
    (job,) = jobs
    what, *options = job.command[job.command.index("bench") + 1 : -2]
    assert (what, " ".join(options)) == (words.split()[0], passed)
    assert (job.workers, job.servers) == (3, 1)
    assert job.settings == {"scheduling": "fifo", "force_distributed": True}


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["pushpull", "--sizes", "x"], "'x' is not a size"),
        (["pushpull", "--servers", "2"], "give --np as well"),
        (["pushpull"], "`--np 2` starts a job on this machine"),
    ],
)
def test_wrong_use_is_explained(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("BYTEPS_SIZE", "BYTEPS_COORDINATOR", "RANK", "WORLD_SIZE", "DMLC_PS_ROOT_URI"):
        monkeypatch.delenv(name, raising=False)
    assert main(["bench", *words]) == 2
    assert text in capsys.readouterr().err


def test_training_without_torch_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["bench", "train", "--model", "tiny"]) == 2
    assert "pip install torch" in capsys.readouterr().err
