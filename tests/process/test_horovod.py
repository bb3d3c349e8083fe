"""Scripts and commands written for Horovod, unchanged; functions that run on every rank."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

import byteps
from byteps.errors import BytePSError, ConfigError

from .jobs import Job, run_byteps

HERE = Path(__file__).parent
MNIST = str(HERE / "horovod_mnist.py")


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_script_for_horovod_runs_as_it_is(workers: int) -> None:
    options = ["--fp16-allreduce"] if workers == 2 else []
    code, output, errors = run_byteps(
        "run", "-np", str(workers), "-H", f"localhost:{workers}", "--as-horovod", MNIST, *options
    ).finish()
    assert code == 0, errors
    found = re.search(r"accuracy (\S+)", output)
    assert found is not None, output
    assert float(found[1]) > 0.85


@pytest.mark.timeout(150)
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_scripts_for_tensorflow_and_keras_run_as_they_are(workers: int) -> None:
    job = run_byteps("run", "-np", str(workers), "--as-horovod", str(HERE / "horovod_tensorflow.py"))
    code, output, errors = job.finish(140.0)
    assert code == 0, errors
    found = re.findall(r"(train_\w+) (\S+)", output)
    assert [name for name, _ in found] == ["train_with_a_tape", "train_by_fit"], output
    assert all(float(accuracy) > 0.85 for _, accuracy in found), output


MODULES = """
from byteps.compat import horovod
horovod.install()
horovod.install()
import horovod as again
import horovod.torch as hvd, byteps.torch
from horovod import torch as same
from horovod.torch.mpi_ops import allreduce_async_, allgather_async, broadcast_async_, synchronize, init
from horovod.torch.compression import Compression
from horovod.torch.functions import broadcast_parameters, broadcast_optimizer_state
from horovod.torch.optimizer import DistributedOptimizer
from horovod.torch.sync_batch_norm import SyncBatchNorm
from horovod.common.exceptions import HorovodInternalError
from horovod.common.util import extension_available, gloo_built, num_rank_is_power_2, split_list
from horovod.common.process_sets import ProcessSet, global_process_set
assert again is horovod and same is hvd and again.run
assert init is byteps.torch.init and DistributedOptimizer is byteps.torch.DistributedOptimizer
assert issubclass(HorovodInternalError, RuntimeError) and hvd.HorovodInternalError is HorovodInternalError
assert extension_available("torch") and gloo_built() and split_list([1, 2, 3], 2) == [[1, 2], [3]]
assert [n for n in range(9) if num_rank_is_power_2(n)] == [1, 2, 4, 8]
names = {}
exec("from horovod.torch import *", names)
assert names["allreduce"] is byteps.torch.allreduce
assert names["broadcast_object"] is not byteps.torch.broadcast_object
try:
    import horovod.ray
except ModuleNotFoundError:
    print("no ray")
"""


def test_the_modules_that_scripts_import() -> None:
    code, output, errors = Job([sys.executable, "-c", MODULES]).finish()
    assert (code, output.strip()) == (0, "no ray"), errors


def test_everyday_options_of_horovodrun() -> None:
    words = ["run", "-np", "2", "-H", "localhost:1,127.0.0.1:1", "--fusion-threshold-mb", "64", "--gloo"]
    words += ["--cycle-time-ms", "1", "--hierarchical-allreduce", "--stall-check-warning-time-seconds", "77"]
    words += [
        "--no-stall-check",
        "--start-timeout",
        "33",
        "--log-level",
        "WARNING",
        "--timeline-filename",
        "",
    ]
    show = "import os; print(sorted((k, v) for k, v in os.environ.items() if k.endswith('TIMEOUT_S')))"
    code, output, errors = run_byteps(*words, "--as-horovod", "--", sys.executable, "-c", show).finish()
    assert code == 0, errors
    assert output.count("('BYTEPS_JOIN_TIMEOUT_S', '33')") == 2
    for option in ("--fusion-threshold-mb", "--cycle-time-ms", "--hierarchical-allreduce"):
        assert f"warning: {option} is ignored: " in errors


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-H", "node7:2"], "node7 is not this machine"),
        (["-H", "localhost"], "1 slots, but there are to be 2 workers"),
        (["-H", "localhost:x"], "should be host:slots"),
        (["--mpi"], "nothing uses MPI"),
        (["--min-np", "1"], "membership is fixed"),
        (["--host-discovery-script", "x"], "membership is fixed"),
    ],
)
def test_what_horovodrun_could_and_this_cannot(words: list[str], message: str) -> None:
    code, _, errors = run_byteps("run", "-np", "2", *words, "true").finish()
    assert code == 2
    assert message in errors


def test_a_hostfile_may_name_this_machine(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# all here\nlocalhost slots=2\n")
    assert run_byteps("run", "-np", "2", "-hostfile", str(file), "true").finish()[0] == 0


def scaled_rank(factor: int, offset: int = 0) -> tuple[int, float]:
    import torch

    import byteps.torch as bps

    bps.init()
    total = bps.push_pull(torch.tensor([float(bps.rank())]), average=False, name="x").item()
    if factor < 0 and bps.rank() == 1:
        raise ValueError("not this rank")
    return bps.rank() * factor + offset, total


def test_a_function_on_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    assert byteps.run(scaled_rank, (10,), {"offset": 1}, np=3) == [(1, 3.0), (11, 3.0), (21, 3.0)]
    with pytest.raises(BytePSError, match=r"rank 1 failed:(.|\n)*not this rank"):
        byteps.run(scaled_rank, (-1,), np=2)
    with pytest.raises(ConfigError, match="nonsense"):
        byteps.run(scaled_rank, (1,), np=1, nonsense=1)
    with pytest.raises(ConfigError, match="fewer than 2 slots"):
        byteps.run(scaled_rank, (1,), np=2, hosts="localhost")
    monkeypatch.setitem(sys.modules, "cloudpickle", None)  # as where it is not installed
    with pytest.raises(ConfigError, match="cannot send"):
        byteps.run(lambda: 1, np=1)
    with pytest.warns(UserWarning, match="use_gloo"):
        assert byteps.run(abs, (-3,), np=1, use_gloo=True) == [3]


def test_a_function_may_end_its_process() -> None:
    assert byteps.run(sys.exit, (0,), np=2) == [None, None]
    with pytest.raises(BytePSError, match="rank 0 ended well but without a result"):
        byteps.run(os._exit, (0,), np=1)
    with pytest.raises(BytePSError, match="exit code 3"):
        byteps.run(sys.exit, (3,), np=1)


def test_numbers_of_processes_are_taken_as_they_are() -> None:
    with pytest.raises(ConfigError, match="servers=0 is not at least 1"):
        byteps.run(abs, (1,), np=2, servers=0)
    with pytest.raises(ConfigError, match="np=0 is not at least 1"):
        byteps.run(abs, (1,), np=0)
    assert byteps.run(abs, (-1,), np=2, servers=0, communicator="allreduce") == [1, 1]


def test_horovods_arguments_of_run_set_what_they_say(capfd: pytest.CaptureFixture[str]) -> None:
    names = ("BYTEPS_JOIN_TIMEOUT_S", "BYTEPS_LOG_LEVEL")
    assert byteps.run(os.getenv, names[:1], np=1, start_timeout=7, verbose=1) == ["7"]
    assert "no pinning:" in capfd.readouterr().err
    assert byteps.run(os.getenv, names[1:], np=1, verbose=2, log_level="error") == ["error"]


SCRIPT = """
import byteps

def one():
    import byteps.torch as bps
    bps.init()
    return bps.size()

if __name__ == "__main__":
    print(byteps.run(one, np=2))
"""


def test_a_function_of_a_script(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    code, output, errors = Job([sys.executable, str(path)]).finish()
    assert code == 0, errors
    assert output.strip() == "[2, 2]"
