"""What is said where UCX cannot be used, and which settings lead to it."""

from __future__ import annotations

import pytest

from byteps import _native
from byteps.config import Config, resolve
from byteps.doctor.findings import Level
from byteps.doctor.rdma import check_rdma
from byteps.errors import ConfigError
from byteps.transport import Library, NoUcx
from byteps.transport.meeting import allowed

PROBLEMS = {
    "byteps was built without UCX": "BYTEPS_USE_RDMA=1",
    "UCX cannot be loaded: libucp.so.0: cannot open shared object file": "apt-get install libucx0",
    "UCX finds nothing that it may use: No such device": "UCX_NET_DEVICES",
}


class FakeUcx:
    """A UCX with one device."""

    version = "1.99.0"
    resources = "#  resource 0  :  md 0  dev 0  flags -- rc_verbs/mlx5_0:1\n"


def refuse(monkeypatch: pytest.MonkeyPatch, problem: str) -> None:
    def open_ucx(polling: bool) -> _native.Ucx:
        raise RuntimeError(problem)

    monkeypatch.setattr(_native, "open_ucx", open_ucx)
    monkeypatch.setattr(_native, "ucx_is_built", lambda: "without" not in problem)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_each_problem_comes_with_what_to_do(monkeypatch: pytest.MonkeyPatch, problem: str) -> None:
    refuse(monkeypatch, problem)
    with pytest.raises(NoUcx) as raised:
        Library().open_port(Config())
    assert problem in str(raised.value)
    assert PROBLEMS[problem] in str(raised.value)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_doctor_fails_only_where_it_was_asked_for(monkeypatch: pytest.MonkeyPatch, problem: str) -> None:
    refuse(monkeypatch, problem)
    asked = next(check_rdma(Config(transport="ucx")))
    assert (asked.check, asked.level) == ("ucx", Level.FAIL)
    assert PROBLEMS[problem] in asked.advice
    assert next(check_rdma(Config())).level is not Level.FAIL


def test_the_doctor_names_the_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "ucx_is_built", lambda: True)
    monkeypatch.setattr(_native, "open_ucx", lambda polling: FakeUcx())
    found = next(check_rdma(Config(transport="ucx")))
    assert (found.level, found.text) == (Level.OK, "1.99.0, built in; finds rc_verbs/mlx5_0:1")


@pytest.mark.parametrize(
    ("worker", "server", "ways"),
    [("ucx", "ucx", ("ucx",)), ("ucx", "auto", ("ucx",)), ("ucx", "tcp", ()), ("auto", "ucx", ())],
)
def test_ucx_needs_both_ends(worker: str, server: str, ways: tuple[str, ...]) -> None:
    assert allowed(worker, server) == ways


@pytest.mark.parametrize(
    ("name", "value", "transport"),
    [
        ("BYTEPS_TRANSPORT", "ucx", "ucx"),
        ("BYTEPS_TRANSPORT", "rdma", "ucx"),
        ("DMLC_ENABLE_RDMA", "1", "ucx"),
        ("DMLC_ENABLE_RDMA", "ucx", "ucx"),
        ("DMLC_ENABLE_RDMA", "0", "auto"),
        ("DMLC_ENABLE_UCX", "1", "ucx"),
    ],
)
def test_old_names_choose_ucx(name: str, value: str, transport: str) -> None:
    resolved = resolve(environ={name: value})
    assert (resolved.config.transport, resolved.warnings) == (transport, [])


def test_another_transport_is_refused() -> None:
    with pytest.raises(ConfigError, match="ucx"):
        resolve(environ={"BYTEPS_TRANSPORT": "pigeon"})
