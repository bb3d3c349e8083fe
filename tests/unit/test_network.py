"""Sockets and addresses of this host."""

from __future__ import annotations

import contextlib
import socket
from typing import Any

import pytest

from byteps.config import Config
from byteps.errors import ConfigError
from byteps.network import advertised_address, bind_address, connect, interfaces, listen, tune


def has_ipv6() -> bool:
    with socket.socket(socket.AF_INET6) as probe, contextlib.suppress(OSError):
        probe.bind(("::1", 0))
        return True
    return False


HAS_IPV6 = has_ipv6()
LOOPBACKS = ["127.0.0.1", *(["::1"] if HAS_IPV6 else [])]
# Reserved for documentation (RFC 5737): nobody has it.
NOBODY = "198.51.100.1"


def exchange(client: socket.socket, server: socket.socket) -> bytes:
    client.sendall(b"x")
    server.settimeout(5)
    return server.recv(1)


@pytest.mark.parametrize("host", LOOPBACKS)
def test_listen_and_connect(host: str) -> None:
    with listen(host, 0) as listener:
        name = listener.getsockname()
        assert name[0] == host
        with connect(host, name[1], 5.0) as client, listener.accept()[0] as server:
            assert client.gettimeout() is None
            for end in (client, server):
                assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
            assert exchange(client, server) == b"x"


@pytest.mark.parametrize("client_host", LOOPBACKS)
@pytest.mark.parametrize("host", ["", "::"] if HAS_IPV6 else ["", "0.0.0.0"])
def test_a_wildcard_takes_both_families(host: str, client_host: str) -> None:
    with listen(host, 0) as listener:
        port = listener.getsockname()[1]
        with connect(client_host, port, 5.0) as client, listener.accept()[0] as server:
            assert exchange(client, server) == b"x"


def test_a_name_is_tried_at_all_its_addresses() -> None:
    """``localhost`` may mean ::1 first, where nobody listens."""
    with listen("127.0.0.1", 0) as listener, connect("localhost", listener.getsockname()[1], 5.0) as client:
        assert client.getpeername()[0] == "127.0.0.1"


def test_a_port_is_free_again_at_once() -> None:
    """Connections of the last owner linger in TIME_WAIT; a restart must not wait for them."""
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with connect("127.0.0.1", port, 5.0) as client:
            server, _ = listener.accept()
            server.close()  # the side that closes first is the one that lingers
            assert client.recv(1) == b""
    with listen("127.0.0.1", port) as again:
        assert again.getsockname()[1] == port


def test_a_taken_port_is_named() -> None:
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"cannot listen on 127\.0\.0\.1:{port}: .*in use.*free port"):
            listen("127.0.0.1", port)


def test_a_foreign_address_is_named() -> None:
    with pytest.raises(ConfigError, match=rf"cannot listen on {NOBODY}:0.*BYTEPS_BIND_HOST"):
        listen(NOBODY, 0)
    with pytest.raises(ConfigError, match=r"cannot listen on no\.such\.host\.invalid:0"):
        listen("no.such.host.invalid", 0)


def test_connecting_to_nobody_is_one_clear_error() -> None:
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ConnectionError, match=rf"cannot connect to 127\.0\.0\.1:{port}: .*refused"):
        connect("127.0.0.1", port, 5.0)
    with pytest.raises(ConnectionError, match=r"cannot connect to no\.such\.host\.invalid"):
        connect("no.such.host.invalid", port, 5.0)


def test_connecting_gives_up_in_time() -> None:
    """A listener whose queue is full answers nobody, like a host that drops packets."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        with contextlib.ExitStack() as waiting:

            def fill() -> None:
                for _ in range(8):
                    waiting.enter_context(connect("127.0.0.1", port, 0.2))

            with pytest.raises(ConnectionError, match="timed out"):
                fill()


def test_a_socket_never_connects_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trying a port of the kernel's own range again and again would in the end meet the port just given."""
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]

    class Bound(socket.socket):
        def connect(self, address: Any) -> None:
            self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.bind(("127.0.0.1", port))
            super().connect(address)

    monkeypatch.setattr(socket, "socket", Bound)
    with pytest.raises(ConnectionError, match="nobody listens there"):
        connect("127.0.0.1", port, 5.0)


def test_congestion_control_is_best_effort(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as sock:
        tune(sock)
        used = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")
    with socket.socket() as sock:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
        except OSError:
            assert used
        else:
            assert used == b"cubic"
    monkeypatch.setattr(socket, "TCP_CONGESTION", 9999)
    with socket.socket() as sock:
        tune(sock)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


def test_interfaces_know_loopback() -> None:
    assert interfaces()["lo"] == tuple(LOOPBACKS)
    assert set(interfaces()) == {name for _, name in socket.if_nameindex()}


BIND_CASES: list[tuple[dict[str, str], str]] = [
    ({}, "127.0.0.1"),
    ({"bind_host": "host.example", "interface": "lo", "advertise_host": NOBODY}, "host.example"),
    ({"interface": "lo", "advertise_host": NOBODY}, "127.0.0.1"),
    ({"advertise_host": "127.0.0.2"}, "127.0.0.2"),
    ({"advertise_host": NOBODY}, "0.0.0.0"),
    ({"coordinator": "127.0.0.9:0"}, "127.0.0.1"),
]
ADVERTISE_CASES: list[tuple[dict[str, str], str, str]] = [
    ({}, "", "127.0.0.1"),
    ({}, "127.0.0.9", "127.0.0.1"),
    ({"bind_host": "127.0.0.3"}, "127.0.0.9", "127.0.0.3"),
    ({"bind_host": "0.0.0.0"}, "127.0.0.9", "127.0.0.1"),
    ({"bind_host": "::"}, "127.0.0.9", "127.0.0.1"),
    ({"interface": "lo", "bind_host": "127.0.0.3"}, "", "127.0.0.1"),
    ({"advertise_host": "gpu-3", "interface": "lo"}, "", "gpu-3"),
]
if HAS_IPV6:
    BIND_CASES += [
        ({"interface": "lo", "coordinator": "[::1]:0"}, "::1"),
        ({"advertise_host": "2001:db8::1"}, "::"),
        ({"coordinator": "[::1]:0"}, "::1"),
    ]
    ADVERTISE_CASES += [({"bind_host": "::"}, "::1", "::1"), ({"interface": "lo"}, "::1", "::1")]


@pytest.mark.parametrize(("settings", "expected"), BIND_CASES)
def test_bind_address(settings: dict[str, str], expected: str) -> None:
    assert bind_address(Config(**settings)) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(("settings", "peer", "expected"), ADVERTISE_CASES)
def test_advertised_address(settings: dict[str, str], peer: str, expected: str) -> None:
    assert advertised_address(Config(**settings), peer) == expected  # type: ignore[arg-type]


def test_a_wrong_interface_names_the_right_ones() -> None:
    with pytest.raises(ConfigError, match=r"no network interface 'eth99' on this host; it has .*lo"):
        bind_address(Config(interface="eth99"))


def test_an_interface_without_an_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("byteps.network.interfaces", lambda: {"ib0": ()})
    with pytest.raises(ConfigError, match="'ib0' has no address"):
        advertised_address(Config(interface="ib0"), "")


def test_an_unreachable_coordinator_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no route to no\.such\.host\.invalid.*BYTEPS_INTERFACE"):
        bind_address(Config(coordinator="no.such.host.invalid:80"))
