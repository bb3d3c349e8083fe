"""What ``byteps doctor`` finds on this host, and how it says so."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import resource
import socket
import threading
import time
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from byteps.cli import main
from byteps.config import Config
from byteps.doctor import coordinator, host, installation, pairs, settings
from byteps.doctor.findings import (
    Finding,
    Level,
    Pair,
    as_json,
    fail,
    failed,
    from_json,
    lines,
    ok,
    summary,
    warn,
)
from byteps.wire import JobSettings, ServerAddress, Welcome


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No file of the surroundings takes part."""
    monkeypatch.chdir(tmp_path)


def named(found: Iterable[Finding], check: str) -> Finding:
    """The one finding of a check."""
    (one,) = (finding for finding in found if finding.check == check)
    return one


def test_findings_are_lines_with_advice() -> None:
    found = [ok("a", "fine"), warn("long name", "odd", "do this"), fail("b", "broken", "do that")]
    assert lines(found) == [
        "OK    a          fine",
        "WARN  long name  odd",
        "                 -> do this",
        "FAIL  b          broken",
        "                 -> do that",
    ]
    assert summary(found) == "3 checks: 1 OK, 1 WARN, 1 FAIL"
    assert failed(found)
    assert not failed(found[:2])


def test_a_report_survives_json() -> None:
    found, measured = [warn("a", "b", "c"), ok("d", "e")], [Pair(1, 0, 0.5, 2e9)]
    report = json.loads(json.dumps(as_json(found, measured)))
    assert report["ok"] is True
    assert report["findings"][0] == {"check": "a", "level": "WARN", "text": "b", "advice": "c"}
    assert from_json(report) == (found, measured)


def test_the_installation_is_described() -> None:
    found = list(installation.check_installation())
    assert not failed(found)
    frameworks = metadata.version("torch") if importlib.util.find_spec("torch") else "none"
    assert frameworks in named(found, "frameworks").text
    assert any(simd in named(found, "native module").text for simd in ("avx512", "avx2", "baseline"))


def test_what_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "torch":
            return "1.13.1+cpu"
        raise metadata.PackageNotFoundError(name)

    def load(name: str) -> None:
        raise ImportError("undefined symbol: x")

    monkeypatch.setattr(installation, "version", version)
    monkeypatch.setattr(importlib, "import_module", load)
    found = list(installation.check_installation())
    for check in ("native module", "numpy", "msgspec", "frameworks"):
        assert named(found, check).level is Level.FAIL
        assert named(found, check).advice
    assert "undefined symbol: x" in named(found, "native module").text
    assert named(found, "byteps").level is Level.WARN


def _files(monkeypatch: pytest.MonkeyPatch, soft: int) -> Finding:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, soft))
    return named(host.check_host(Config(size=100, rank=0, connections=2)), "open files")


@pytest.mark.parametrize(
    ("soft", "level"),
    [(64, Level.FAIL), (512, Level.WARN), (4096, Level.OK), (resource.RLIM_INFINITY, Level.OK)],
)
def test_open_files_must_do_for_the_job(soft: int, level: Level, monkeypatch: pytest.MonkeyPatch) -> None:
    finding = _files(monkeypatch, soft)
    assert finding.level is level
    assert ("ulimit -n" in finding.advice) == (level is not Level.OK)


@pytest.mark.parametrize("free", [0, 64 << 20, 1 << 30])
def test_little_shared_memory_is_a_warning(free: int, monkeypatch: pytest.MonkeyPatch) -> None:
    space = SimpleNamespace(f_frsize=4096, f_bavail=free // 4096, f_blocks=(2 << 30) // 4096)
    monkeypatch.setattr(os, "statvfs", lambda folder: space)
    finding = named(host.check_host(Config()), "shared memory")
    assert finding.level is (Level.OK if free == 1 << 30 else Level.WARN)


def test_no_shared_memory_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(folder: Path) -> None:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(os, "statvfs", missing)
    assert "No such file" in named(host.check_host(Config()), "shared memory").text


def test_cubic_that_is_not_allowed_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_CONGESTION", "no-such-control")
    finding = named(host.check_host(Config()), "congestion control")
    assert finding.level is Level.WARN
    assert "sysctl" in finding.advice


def test_a_wall_clock_that_is_set_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = host.Clocks()
    assert clocks.check().level is Level.OK
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3600)
    assert "+3600" in clocks.check().text
    assert clocks.check().level is Level.WARN


def _settings(*warnings: str, **fields: object) -> list[Finding]:
    return list(settings.check_settings(Config(**fields), warnings))  # type: ignore[arg-type]


def test_odd_names_are_findings() -> None:
    assert named(_settings(), "variables").level is Level.OK
    assert named(_settings("BYTEPS_X is not a setting"), "variables").level is Level.WARN


@pytest.mark.parametrize(
    ("mode", "text", "level"),
    [
        (0o600, "x" * 64, Level.OK),
        (0o644, "x" * 64, Level.WARN),
        (0o600, "short", Level.WARN),
        (0o600, "", Level.FAIL),
    ],
)
def test_the_token_file_is_looked_at(mode: int, text: str, level: Level, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(text)
    path.chmod(mode)
    finding = named(_settings(auth_token_file=str(path)), "token")
    assert finding.level is level
    assert bool(finding.advice) == (level is not Level.OK)
    assert "xxxx" not in finding.text


def test_a_token_file_that_is_not_there_fails(tmp_path: Path) -> None:
    found = _settings(auth_token_file=str(tmp_path / "none"))
    assert "No such file" in named(found, "token").text
    assert failed(found)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"interface": "no-such0"}, "no network interface 'no-such0'"),
        ({"bind_host": "0.0.0.0"}, "without a token"),
        ({"coordinator": "no-such-host.invalid:1"}, "no route to no-such-host.invalid"),
    ],
)
def test_addresses_that_cannot_work_fail(fields: dict[str, str], text: str) -> None:
    finding = named(_settings(**fields), "addresses")
    assert finding.level is Level.FAIL
    assert text in finding.text


def test_the_interfaces_are_listed() -> None:
    assert "lo 127.0.0.1" in named(_settings(), "interfaces").text


def test_tls_files_that_cannot_be_used_fail() -> None:
    finding = named(_settings(tls_cert="/none", tls_key="/none", tls_ca="/none"), "TLS")
    assert finding.level is Level.FAIL


def closed_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_coordinator_that_is_not_there_fails_soon() -> None:
    config = Config(coordinator=f"127.0.0.1:{closed_port()}", join_timeout_s=0.2)
    (finding,) = coordinator.check_coordinator(config)
    assert finding.level is Level.FAIL
    assert "Connection refused" in finding.text
    assert "byteps coordinator" in finding.advice


def test_something_else_in_the_coordinators_place_fails() -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        config = Config(coordinator=f"127.0.0.1:{stranger.getsockname()[1]}", join_timeout_s=0.2)
        closer = threading.Thread(target=lambda: stranger.accept()[0].close())
        closer.start()
        (finding,) = coordinator.check_coordinator(config)
        closer.join()
    assert finding.level is Level.FAIL
    assert "something else than byteps" in finding.text


def test_every_server_that_cannot_be_reached_is_named() -> None:
    addresses = [ServerAddress("127.0.0.1", closed_port()) for _ in range(3)]
    job = JobSettings(lanes=1, partition_bytes=65536, deterministic=False)
    welcome = Welcome(1, 2, 0, 1, 1, addresses, job)
    with pytest.raises(pairs.Unreachable) as caught:
        pairs._linker(Config(), welcome)
    assert caught.value.rank == 1
    assert set(caught.value.failures) == {0, 1, 2}
    for server, text in caught.value.failures.items():
        assert f"server {server}" in text
        assert str(addresses[server].port) in text


def test_a_slow_pair_is_a_warning() -> None:
    measured = [Pair(worker, server, 1e-4, 1e9) for worker in range(2) for server in range(2)]
    measured[3] = Pair(1, 1, 1e-4, 1e8)
    found = list(pairs._judged(measured))
    assert [finding.level for finding in found] == [Level.OK] * 3 + [Level.WARN]
    assert found[0].text == "0.10 ms, 1.000 GB/s each way"


def test_a_wrong_setting_is_a_finding_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BYTEPS_PEER_TIMEOUT_S", "soon")
    assert main(["doctor", "--local"]) == 1
    assert "FAIL  settings" in capsys.readouterr().out


def test_the_exit_code_is_0_when_nothing_failed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--local", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is True
    assert {"python", "native module", "open files", "token", "clock"} <= {
        one["check"] for one in report["findings"]
    }


@pytest.mark.parametrize("words", [["--servers", "2"], ["--np", "-1"], ["--np", "2", "--servers", "-1"]])
def test_wrong_use_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *words]) == 2
    assert "--np N" in capsys.readouterr().err
