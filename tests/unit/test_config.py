"""Settings: precedence, every source, launchers, limits, warnings, and the page that documents them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from byteps.config import (
    Config,
    Resolved,
    child_environment,
    describe,
    format_address,
    parse_address,
    reference_table,
    resolve,
    visible_devices,
)
from byteps.config.fields import FIELDS
from byteps.config.names import spellings
from byteps.dtypes import GRAIN_BYTES
from byteps.errors import BytePSError, ConfigError

DOCUMENT = Path(__file__).parents[2] / "docs" / "configuration.md"


@pytest.fixture(autouse=True)
def empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def found(**environ: str) -> Config:
    return resolve(environ=environ).config


# Precedence


def test_a_plain_process_is_a_job_of_one() -> None:
    resolved = resolve(environ={})
    config = resolved.config
    assert (config.rank, config.size, config.local_rank, config.local_size) == (0, 1, 0, 1)
    assert config.launcher == ""
    assert resolved.warnings == []
    assert set(resolved.origins) == set(FIELDS)
    assert resolved.origins["log_level"] == "default"


def test_the_stronger_source_wins(tmp_path: Path) -> None:
    (tmp_path / "byteps.toml").write_text('interface = "file"')
    environ = {"DMLC_INTERFACE": "old", "BYTEPS_INTERFACE": "new"}
    steps: list[tuple[Resolved, str, str]] = [
        (
            resolve({"interface": "argument"}, cli={"interface": "option"}, environ=environ),
            "argument",
            "argument interface",
        ),
        (resolve({"interface": None}, cli={"interface": "option"}, environ=environ), "option", "--interface"),
        (resolve(environ=environ), "new", "BYTEPS_INTERFACE"),
        (resolve(environ={"DMLC_INTERFACE": "old"}), "old", "DMLC_INTERFACE"),
        (resolve(environ={}), "file", "byteps.toml: interface"),
    ]
    for resolved, value, origin in steps:
        assert (resolved.config.interface, resolved.origins["interface"]) == (value, origin)


def test_the_file_is_looked_for_in_the_given_directory(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "byteps.toml").write_text("peer_timeout_s = 7\ndeterministic = true")
    config = resolve(environ={}, directory=inner).config
    assert config.peer_timeout_s == 7.0
    assert isinstance(config.peer_timeout_s, float)
    assert config.deterministic
    assert not resolve(environ={}).config.deterministic


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BYTEPS_JOB_ID", "mine")
    assert resolve().config.job_id == "mine"
    assert child_environment({"A": "1"})["BYTEPS_JOB_ID"] == "mine"
    assert child_environment({"BYTEPS_JOB_ID": "2"})["BYTEPS_JOB_ID"] == "2"


@pytest.mark.parametrize(
    ("stronger", "environ", "expected"),
    [
        ({"auth_token": "mine"}, {"BYTEPS_AUTH_TOKEN_FILE": "/secret"}, ("mine", "")),
        ({"auth_token_file": "/mine"}, {"BYTEPS_AUTH_TOKEN": "other"}, ("", "/mine")),
        ({}, {"BYTEPS_AUTH_TOKEN": "t", "BYTEPS_AUTH_TOKEN_FILE": "/f"}, ("t", "/f")),
    ],
)
def test_a_token_and_a_token_file_are_one_setting(
    stronger: dict[str, object], environ: dict[str, str], expected: tuple[str, str]
) -> None:
    config = resolve(stronger, environ=environ).config
    assert (config.auth_token, config.auth_token_file) == expected


# Every field by its variable

SAMPLES = {"int": ("3", 3), "float": ("2.5", 2.5), "bool": ("yes", True), "str": ("text", "text")}
SPECIAL: dict[str, tuple[str, object]] = {
    "role": ("SCHEDULER", "coordinator"),
    "coordinator": ("[fd00::1]:5", "[fd00::1]:5"),
    "launcher": ("slurm", "slurm"),
    "communicator": ("All-Reduce", "allreduce"),
    "scheduling": ("Stop-and-Wait", "stop-and-wait"),
    "tune_search": ("Random", "random"),
    "hierarchical": ("0", "off"),
    "node_collectives": ("Gloo", "gloo"),
    "transport": ("Shared-Memory", "shm"),
    "log_level": ("WARNING", "warning"),
    "partition_bytes": ("1MiB", 1 << 20),
    "credit_bytes": ("3 KiB", 3 << 10),
    "heartbeat_s": ("0.5", 0.5),
}
# Given alone, these contradict others.
COMPANIONS = {
    "rank": {"BYTEPS_SIZE": "4"},
    "local_size": {"BYTEPS_SIZE": "4"},
    "local_rank": {"BYTEPS_SIZE": "4"},
    "peer_timeout_s": {"BYTEPS_HEARTBEAT_S": "1"},
    **{
        name: {f"BYTEPS_TLS_{part}": "x" for part in ("CERT", "KEY", "CA")}
        for name in ("tls_cert", "tls_key", "tls_ca")
    },
}


@pytest.mark.parametrize("name", [name for name in FIELDS if spellings(name)])
def test_every_field_has_its_variable(name: str) -> None:
    text, value = SPECIAL.get(name, SAMPLES[str(FIELDS[name].type)])
    for spelling in spellings(name):
        resolved = resolve(environ={**COMPANIONS.get(name, {}), spelling: f" {text} "})
        assert getattr(resolved.config, name) == value
        assert resolved.origins[name] == spelling
        assert resolved.warnings == []
    assert spellings(name)[0] == f"BYTEPS_{name.upper()}"


def test_durations_go_without_their_unit_and_empty_variables_are_unset() -> None:
    assert found(BYTEPS_PEER_TIMEOUT="9").peer_timeout_s == 9
    assert found(BYTEPS_PEER_TIMEOUT="9", BYTEPS_PEER_TIMEOUT_S="8").peer_timeout_s == 8
    assert found(BYTEPS_PEER_TIMEOUT="", DMLC_ROLE="", DMLC_NUM_WORKER="").peer_timeout_s == 30


def test_the_port_has_no_variable() -> None:
    """Kubernetes describes a Service called "byteps" in variables of just these names."""
    links = {
        "BYTEPS_PORT": "tcp://10.0.0.1:80",
        "BYTEPS_PORT_80_TCP_ADDR": "10.0.0.1",
        "BYTEPS_SERVICE_HOST": "10.0.0.1",
        "BYTEPS_COORDINATOR_SERVICE_PORT": "80",
        "BYTEPS_COORDINATOR_PORT": "tcp://10.0.0.2:80",
    }
    resolved = resolve(environ=links)
    assert resolved.config.port == 0
    assert resolved.warnings == []
    assert resolve(environ={"BYTEPS_PORT": "80"}).warnings != []
    assert resolve(cli={"port": 80}, environ={}).config.port == 80


# Bad values


@pytest.mark.parametrize(
    ("environ", "parts"),
    [
        ({"BYTEPS_RANK": "first"}, ("BYTEPS_RANK", "'first'", "whole number", "-1")),
        ({"BYTEPS_CONNECTIONS": "65"}, ("BYTEPS_CONNECTIONS", "65", "from 0 to 64")),
        ({"BYTEPS_SERVER_ENGINE_THREAD": "-1"}, ("BYTEPS_SERVER_ENGINE_THREAD", "-1")),
        ({"BYTEPS_PEER_TIMEOUT": "inf"}, ("BYTEPS_PEER_TIMEOUT", "inf", "(s)")),
        ({"BYTEPS_STALL_TIMEOUT_S": "nan"}, ("BYTEPS_STALL_TIMEOUT_S", "nan")),
        ({"BYTEPS_SCHEDULING": "lifo"}, ("BYTEPS_SCHEDULING", "'lifo'", "priority, fifo, stop-and-wait")),
        ({"DMLC_ROLE": "joint"}, ("DMLC_ROLE", "'joint'", "worker, server, coordinator")),
        ({"BYTEPS_INSECURE": "maybe"}, ("BYTEPS_INSECURE", "'maybe'", "1 or 0")),
        ({"BYTEPS_COORDINATOR": "::1"}, ("BYTEPS_COORDINATOR", "'::1'", "host:port")),
        ({"BYTEPS_PARTITION_BYTES": "-1"}, ("BYTEPS_PARTITION_BYTES", "at least 0", "bytes")),
        ({"BYTEPS_JOB_ID": "x" * 65}, ("BYTEPS_JOB_ID", "64 bytes")),
        ({"RANK": "a", "WORLD_SIZE": "2"}, ("RANK", "'a'")),
        ({"DMLC_PS_ROOT_URI": "10.0.0.1"}, ("DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT is not")),
        ({"DMLC_PS_ROOT_PORT": "80"}, ("DMLC_PS_ROOT_PORT", "DMLC_PS_ROOT_URI is not")),
        (
            {"BYTEPS_RANK": "2", "BYTEPS_SIZE": "2"},
            ("rank = 2 (from BYTEPS_RANK)", "size = 2 (from BYTEPS_SIZE)"),
        ),
        ({"BYTEPS_LOCAL_RANK": "2", "BYTEPS_LOCAL_SIZE": "2", "BYTEPS_SIZE": "4"}, ("local_rank", "below")),
        ({"BYTEPS_LOCAL_SIZE": "4", "BYTEPS_SIZE": "2"}, ("local_size = 4", "size = 2")),
        ({"BYTEPS_HEARTBEAT": "20"}, ("peer_timeout_s = 30", "twice", "heartbeat_s = 20")),
        ({"BYTEPS_TLS_CERT": "a.pem"}, ("tls_cert = a.pem", "tls_ca and tls_key")),
    ],
)
def test_a_bad_value_names_itself_and_what_is_allowed(
    environ: dict[str, str], parts: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(environ=environ)
    assert [part for part in parts if part not in str(caught.value)] == []
    assert isinstance(caught.value, (BytePSError, ValueError))


def test_bad_arguments_and_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no setting 'partition_byte'; did you mean partition_bytes"):
        resolve({"partition_byte": 1}, environ={})
    with pytest.raises(ConfigError, match="argument rank is True"):
        resolve({"rank": True}, environ={})
    with pytest.raises(ConfigError, match="--log-level is 'loud'"):
        resolve(cli={"log_level": "loud"}, environ={})
    with pytest.raises(ConfigError, match=r"Config\.size is '2'"):
        Config(size="2")  # type: ignore[arg-type]
    (tmp_path / "byteps.toml").write_text('connections = "many"')
    with pytest.raises(ConfigError, match=r"byteps\.toml: connections is 'many'"):
        resolve(environ={})
    (tmp_path / "byteps.toml").write_text("connections = ")
    with pytest.raises(ConfigError, match="not valid TOML"):
        resolve(environ={})
    (tmp_path / "byteps.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not valid TOML"):
        resolve(environ={})


def test_a_secret_is_never_shown() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve({"auth_token": 123456}, environ={})
    assert "123456" not in str(caught.value)
    resolved = resolve(environ={"BYTEPS_AUTH_TOKEN": "swordfish"})
    assert resolved.config.auth_token == "swordfish"
    assert "swordfish" not in repr(resolved)
    assert "swordfish" not in str(describe(resolved))
    assert [row.value for row in describe(resolved) if row.name == "auth_token"] == ["(hidden)"]


# Warnings


def test_unknown_names_warn_with_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "byteps.toml").write_text("conections = 2")
    resolved = resolve(environ={"BYTEPS_PARTITON_BYTES": "1", "OTHER": "1"})
    assert len(resolved.warnings) == 2
    assert "BYTEPS_PARTITON_BYTES" in resolved.warnings[0]
    assert "did you mean BYTEPS_PARTITION_BYTES?" in resolved.warnings[0]
    assert "did you mean connections?" in resolved.warnings[1]


def _timeline(environ: dict[str, str], **arguments: object) -> tuple[object, ...]:
    resolved = resolve(arguments, environ=environ)
    assert resolved.warnings == []
    return tuple(getattr(resolved.config, f) for f in ("timeline", "trace_start_step", "trace_end_step"))


def test_a_timeline_has_three_names() -> None:
    assert _timeline({}) == ("", 0, 0)
    assert _timeline({"BYTEPS_TIMELINE": "a"}) == ("a", 0, 0)
    assert _timeline({"HOROVOD_TIMELINE": "a"}) == ("a", 0, 0)
    assert _timeline({"BYTEPS_TIMELINE": "b"}, trace="a") == ("a", 0, 0)


def test_bytepss_trace_is_a_timeline_of_some_steps() -> None:
    on = {"BYTEPS_TRACE_ON": "1"}
    assert _timeline(on) == ("./trace/timeline.json.gz", 10, 20)
    steps = {"BYTEPS_TRACE_START_STEP": "3", "BYTEPS_TRACE_END_STEP": "5", "BYTEPS_TRACE_DIR": "d"}
    assert _timeline({**on, **steps}) == ("d/timeline.json.gz", 3, 5)
    assert _timeline({**steps, "BYTEPS_TRACE_ON": "0"})[0] == ""
    with pytest.raises(ConfigError, match=r"trace_start_step = 10 .* trace_end_step = 5"):
        resolve(environ={**on, "BYTEPS_TRACE_END_STEP": "5"})


def test_a_timeline_that_is_to_be_started_later() -> None:
    resolved = resolve(environ={"HOROVOD_TIMELINE": "DYNAMIC"})
    assert resolved.config.timeline == "DYNAMIC"
    assert not resolved.warnings


def test_names_without_meaning_are_named_once() -> None:
    old = (
        "HOROVOD_THREAD_AFFINITY",
        "BYTEPS_PCIE_SWITCH_SIZE",
        "HOROVOD_CYCLE_TIME",
        "HOROVOD_FUSION_THRESHOLD",
        "PS_VERBOSE",
        "BYTEPS_ENABLE_ASYNC",
    )
    warnings = resolve(environ=dict.fromkeys(old, "1")).warnings
    assert len(warnings) == 1
    assert [name for name in old if name not in warnings[0]] == []


def test_partitions_are_whole_cells_of_bounded_number() -> None:
    assert found(BYTEPS_PARTITION_BYTES="4100000").partition_bytes == 251 * GRAIN_BYTES
    assert found(BYTEPS_PARTITION_BYTES="1").partition_bytes == GRAIN_BYTES
    assert found().partition_bytes == found(BYTEPS_PARTITION_BYTES="0").partition_bytes == 0
    assert found(BYTEPS_PARTITION_BYTES="131072").partition_bytes == 128 << 10
    resolved = resolve(environ={"BYTEPS_PARTITION_BYTES": "2147483647"})
    assert resolved.config.partition_bytes == 64 << 20
    assert len(resolved.warnings) == 1
    assert "BYTEPS_PARTITION_BYTES" in resolved.warnings[0]
    assert "64 MiB" in resolved.warnings[0]


def test_the_old_credit_counts_partitions() -> None:
    assert found(BYTEPS_SCHEDULING_CREDIT="4").credit_bytes == 4 * (128 << 10)
    partitions = found(BYTEPS_SCHEDULING_CREDIT="4", BYTEPS_PARTITION_BYTES="1MiB")
    assert partitions.credit_bytes == 4 << 20
    assert found(BYTEPS_SCHEDULING_CREDIT="34359738368").credit_bytes == 34359738368
    assert found(BYTEPS_SCHEDULING_CREDIT="0").credit_bytes == 0
    assert found(BYTEPS_SCHEDULING_CREDIT="4", BYTEPS_CREDIT_BYTES="100").credit_bytes == 100


# For readers


def test_rows_tell_value_and_origin() -> None:
    rows = {row.name: row for row in describe(resolve(cli={"partition_bytes": 65536}, environ={}))}
    assert list(rows) == list(FIELDS)
    assert rows["partition_bytes"][1:3] == ("65536", "--partition-bytes")
    assert rows["insecure"].value == "0"
    assert all(row.help for row in rows.values())


def test_the_page_is_current() -> None:
    assert DOCUMENT.read_text() == reference_table(), (
        "write it anew: python -c 'from byteps.config import reference_table as t; print(t(), end=str())' "
        "> docs/configuration.md"
    )


def test_every_field_is_documented_and_valid() -> None:
    Config()
    for field in dataclasses.fields(Config):
        assert field.metadata["help"].endswith((".", ")"))
        if field.name.endswith(("_s", "_bytes")):
            assert field.metadata["unit"] == ("s" if field.name.endswith("_s") else "bytes")
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().rank = 1  # type: ignore[misc]


@pytest.mark.parametrize("address", [("10.0.0.1", 80), ("host.example", 0), ("fd00::1", 65535), ("::", 1)])
def test_addresses_round_trip(address: tuple[str, int]) -> None:
    assert parse_address(format_address(*address)) == address


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":80", "fd00::1", "[fd00::1]", "h:65536", "h:-1", "h:²"]
)
def test_bad_addresses_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="address"):
        parse_address(text)


@pytest.mark.parametrize(("listed", "count"), [("0,1,2", 3), ("all", 1), ("", 1), ("0,", 1)])
def test_visible_devices(listed: str, count: int) -> None:
    assert visible_devices({"NVIDIA_VISIBLE_DEVICES": listed}) == count
