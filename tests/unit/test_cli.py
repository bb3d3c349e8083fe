"""The ``byteps`` command line: help, errors, ``byteps config`` and what it does not import."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from byteps.cli import COMMANDS, main
from byteps.config.fields import FIELDS
from byteps.launch import bpslaunch


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variable and no file of the surroundings takes part."""
    for name in ("BYTEPS_AUTH_TOKEN", "BYTEPS_SIZE", "RANK", "WORLD_SIZE", "DMLC_ROLE", "DMLC_NUM_WORKER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def _exit_code(words: list[str]) -> int:
    """The exit code, whether argparse raises it or the command returns it."""
    try:
        return main(words)
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else -1


def test_help_names_every_command_and_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert _exit_code(["--help"]) == 0
    output = capsys.readouterr().out
    assert all(name in output for name in COMMANDS)
    assert "byteps run -np 2 python train.py" in output


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_each_command_teaches_its_use(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _exit_code([name, "--help"]) == 0
    output = capsys.readouterr().out
    assert "example" in output
    assert f"  byteps {name}" in output or f" byteps {name}" in output
    assert "--leash" not in output
    assert "--auth-token " not in output, "other users can read command lines"


@pytest.mark.parametrize(
    ("words", "code"),
    [([], 2), (["fly"], 2), (["run"], 2), (["config", "--no-such-option"], 2), (["server"], 2)],
)
def test_wrong_use_is_refused(words: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert _exit_code(words) == code
    output = capsys.readouterr()
    assert output.out == ""
    assert "byteps" in output.err


def test_parsing_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom byteps.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print(*(name for name in sys.modules), file=sys.stderr)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    loaded = set(ran.stderr.split())
    assert "argparse" in loaded
    assert not loaded & {"numpy", "msgspec", "asyncio", "ssl", "dataclasses", "byteps.config", "torch"}


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.split()[0] == "byteps"


def test_config_shows_values_and_origins(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BYTEPS_AUTH_TOKEN", "do not show this")
    monkeypatch.setenv("BYTEPS_PEER_TIMEOUT_S", "7")
    monkeypatch.setenv("BYTEPS_PARTITON_BYTES", "1")
    words = ["config", "--num-workers", "3", "--insecure", "--log-level", "INFO"]
    assert main([*words, "--json"]) == 0
    output = capsys.readouterr()
    found = json.loads(output.out)
    assert list(found) == list(FIELDS)
    assert found["size"] == {"value": 3, "origin": "--size"}
    assert found["insecure"] == {"value": True, "origin": "--insecure"}
    assert found["log_level"] == {"value": "info", "origin": "--log-level"}
    assert found["peer_timeout_s"] == {"value": 7.0, "origin": "BYTEPS_PEER_TIMEOUT_S"}
    assert found["auth_token"] == {"value": "(hidden)", "origin": "BYTEPS_AUTH_TOKEN"}
    assert "did you mean BYTEPS_PARTITION_BYTES?" in output.err
    assert main(words) == 0
    text = capsys.readouterr().out
    assert "do not show this" not in text
    assert len(text.splitlines()) == len(FIELDS)


def test_a_wrong_setting_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--heartbeat-s", "often"]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("byteps config: error: --heartbeat-s is 'often'")
    assert len(errors.splitlines()) == 1


def test_a_reader_that_goes_away_is_no_error() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "byteps", "config", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as command:
        assert command.stdout is not None
        assert command.stderr is not None
        command.stdout.close()
        assert command.stderr.read() == b""
    assert command.returncode == 141


@pytest.mark.parametrize(
    ("variables", "missing"),
    [
        (
            {"DMLC_NUM_WORKER": "2"},
            "DMLC_ROLE, DMLC_NUM_SERVER, DMLC_PS_ROOT_URI, DMLC_PS_ROOT_PORT, DMLC_WORKER_ID",
        ),
        (
            {"DMLC_ROLE": "scheduler", "DMLC_NUM_WORKER": "2"},
            "DMLC_NUM_SERVER, DMLC_PS_ROOT_URI, DMLC_PS_ROOT_PORT",
        ),
        ({"DMLC_NUM_WORKER": "1"}, "DMLC_ROLE"),
    ],
)
def test_bpslaunch_names_all_that_is_missing(
    variables: dict[str, str],
    missing: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert bpslaunch.main(["python", "train.py"]) == 2
    assert f"not set: {missing};" in capsys.readouterr().err


@pytest.mark.parametrize(("variable", "value"), [("DMLC_ROLE", "dancer"), ("DMLC_NUM_WORKER", "many")])
def test_bpslaunch_refuses_wrong_values(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DMLC_WORKER_ID", "0")
    monkeypatch.setenv(variable, value)
    assert bpslaunch.main(["python", "train.py"]) == 2
    assert variable in capsys.readouterr().err


def test_bpslaunch_needs_no_server_for_one_machine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DMLC_NUM_WORKER", "1")
    monkeypatch.setenv("DMLC_ROLE", "server")
    assert bpslaunch.main([]) == 0
    assert "needs no server" in capsys.readouterr().out
