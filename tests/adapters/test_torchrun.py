"""Finding the job under torchrun: invitations through the store, who starts what, and the address told."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from byteps.children import ChildRole, as_environment
from byteps.config import Config, format_address
from byteps.errors import ConfigError, HandshakeError, JoinError
from byteps.torch.launching import torchrun
from byteps.torch.launching.invitations import Board, Invitation, receive

TOKEN = "0123456789" * 4


@pytest.fixture
def _store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 hosts the store, at a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        monkeypatch.setenv("MASTER_PORT", str(probe.getsockname()[1]))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)


@pytest.fixture(scope="module")
def coordinator() -> Iterator[str]:
    """Address of a coordinator whose token is TOKEN."""
    child = ChildRole("coordinator", as_environment({"auth_token": TOKEN}))
    host, port = child.wait_ready(30).split()
    yield format_address(host, int(port))
    child.terminate()


def rank(number: int, **settings: object) -> Config:
    known = {"rank": number, "size": 2, "local_rank": number, "local_size": 2, "join_timeout_s": 20.0}
    return Config(**{**known, **settings})  # type: ignore[arg-type]


@contextmanager
def hosted(*invitations: Invitation) -> Iterator[None]:
    """Rank 0 hosts the store, with invitations."""
    board = Board(rank(0), time.monotonic() + 20)
    for invitation in invitations:
        board.publish(invitation)
    yield
    del board


@pytest.mark.usefixtures("_store")
def test_old_invitations_are_passed_over(coordinator: str) -> None:
    """After a restart invitations hang in the store whose coordinators are gone, or have another's port."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        gone = Invitation(format_address(*nobody.getsockname()), "y" * 40)
        taken, live = Invitation(coordinator, "z" * 40), Invitation(coordinator, TOKEN)
        with hosted(gone, taken), ThreadPoolExecutor(1) as late:
            waiting = late.submit(receive, rank(1))
            with hosted(live):
                assert waiting.result(30) == live
        with hosted(gone, live):
            assert receive(rank(1)) == live, "the newest one is looked at first"


@pytest.mark.usefixtures("_store")
def test_an_invitation_counts_once(coordinator: str, caplog: pytest.LogCaptureFixture) -> None:
    live = Invitation(coordinator, TOKEN)
    with hosted(live):
        assert receive(rank(1)) == live
        with pytest.raises(JoinError, match=r"rank 1 waited 0.5 s .* for rank 0 to call init\(\)"):
            receive(rank(1, join_timeout_s=0.5, stall_warning_s=0.2))
        assert "rank 1 waits for rank 0" in caplog.text
        assert receive(rank(2, size=3, local_size=3)) == live, "other ranks have not used it"


@pytest.mark.usefixtures("_store")
def test_a_coordinator_that_does_not_answer_is_named() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = format_address(*nobody.getsockname())
        with (
            hosted(Invitation(address, TOKEN)),
            pytest.raises(JoinError, match=f"coordinator at {address}, which it started earlier"),
        ):
            receive(rank(1, join_timeout_s=0.5))


@pytest.mark.usefixtures("_store")
def test_configured_tokens_that_differ_are_refused(coordinator: str) -> None:
    with hosted(Invitation(coordinator, "")), pytest.raises(HandshakeError, match="token"):
        receive(rank(1, auth_token="x" * 40))


@pytest.mark.usefixtures("_store")
def test_a_store_that_nobody_hosts_is_named() -> None:
    with pytest.raises(JoinError, match="cannot open the job's store at MASTER_ADDR="):
        receive(rank(1, join_timeout_s=0.5))


@pytest.mark.parametrize("missing", ["MASTER_ADDR", "MASTER_PORT"])
@pytest.mark.usefixtures("_store")
def test_the_stores_address_must_be_set(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(missing)
    for number in range(2):
        with pytest.raises(ConfigError, match=f"{missing} is ''"):
            torchrun.discover(rank(number))


@pytest.mark.parametrize(("mine", "other"), [(TOKEN, "fresh"), ("", "")])
@pytest.mark.usefixtures("_store")
def test_a_token_on_some_ranks_only_is_refused(mine: str, other: str) -> None:
    with pytest.raises(ConfigError, match=r"rank \d has a token configured and rank \d has none"):
        torchrun._accept(rank(1, auth_token=mine), Invitation("127.0.0.1:0", other))


@pytest.mark.parametrize(
    ("settings", "nodes", "servers"),
    [
        ({}, 1, 1),
        ({"num_servers": 3}, 1, 3),
        ({"size": 8}, 4, 1),
        ({"size": 8, "num_servers": 8}, 4, 2),
        ({"size": 6, "nodes": 2}, 2, 1),
        ({"size": 3, "local_rank": -1, "local_size": 0}, 3, 1),
    ],
)
def test_each_node_has_its_servers(settings: dict[str, object], nodes: int, servers: int) -> None:
    config = rank(0, **settings)
    assert (torchrun._nodes(config), torchrun._servers_per_node(config)) == (nodes, servers)


def test_servers_that_do_not_divide_evenly_are_refused() -> None:
    with pytest.raises(ConfigError, match="num_servers = 3 cannot be spread evenly over 2 nodes"):
        torchrun.discover(rank(0, size=4, num_servers=3))


def test_one_rank_needs_nobody() -> None:
    alone = rank(0, size=1, local_size=1)
    config, leave = torchrun.discover(alone)
    leave()
    assert config == alone


@pytest.mark.parametrize(
    ("settings", "master", "expected"),
    [
        ({}, "10.1.2.3", "127.0.0.1"),
        ({"size": 4}, "127.0.0.1", "127.0.0.1"),
        ({"size": 4}, "localhost", "127.0.0.1"),
        ({"size": 4}, "10.1.2.3", "route to 10.1.2.3"),
        ({"size": 4}, "loopback.example", "route to 192.0.2.1"),
        ({"extra_servers": 1}, "127.0.0.1", "route to 192.0.2.1"),
        ({"advertise_host": "10.9.9.9"}, "10.1.2.3", "10.9.9.9"),
    ],
)
def test_the_coordinators_address_is_one_that_other_nodes_reach(
    settings: dict[str, object], master: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Routes are faked: what matters is whose route is asked for."""

    def route(config: Config, peer: str) -> str:
        near = peer in ("127.0.0.1", "localhost", "loopback.example")
        return config.advertise_host or ("127.0.0.1" if near else f"route to {peer}")

    monkeypatch.setattr(torchrun, "advertised_address", route)
    assert torchrun._coordinator_host(rank(0, **settings), master) == expected


def test_children_get_the_settings_that_were_changed() -> None:
    settings = torchrun._child_settings(
        rank(1, partition_bytes=1 << 16, heartbeat_s=2.0, launcher="torchrun")
    )
    assert settings["partition_bytes"] == 1 << 16
    assert settings["heartbeat_s"] == 2.0
    assert settings["rank"] == settings["size"] == settings["local_rank"] == ""
    assert not {"role", "launcher", "credit_bytes"} & set(settings)
