"""The member's end of the control connection: silence, and messages that cannot be handled."""

from __future__ import annotations

import queue
import socket
from collections.abc import Iterator

import pytest

from byteps.control import ControlClient
from byteps.dialing import SocketChannel
from byteps.errors import PeerLost
from byteps.wire import Departed, End, Heartbeat, Leave, Message, encode

LIMIT_S = 10.0


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A member's socket and the coordinator's."""
    here, there = socket.socketpair()
    with here, there:
        yield here, there


class Member:
    """A client on a socket; it cannot handle ``End``."""

    def __init__(self, sock: socket.socket, silence_s: float) -> None:
        self.heard: queue.Queue[Message] = queue.Queue()
        self.closed: queue.Queue[str] = queue.Queue()
        self.client = ControlClient(self._hear, self.closed.put)
        channel = SocketChannel(sock, self.client, silence_s)
        self.client.attach(channel)
        channel.start()

    def _hear(self, message: Message) -> None:
        if isinstance(message, End):
            raise ValueError("boom")
        self.heard.put(message)

    def check_lost(self, reason: str) -> None:
        text = f"lost the coordinator: {reason}"
        assert self.closed.get(timeout=LIMIT_S) == text
        with pytest.raises(PeerLost, match=text):
            self.client.notify(Leave())
        self.client.close()
        assert self.closed.empty()


def test_a_silent_coordinator_is_lost(ends: tuple[socket.socket, socket.socket]) -> None:
    Member(ends[0], 0.1).check_lost("no heartbeat for 0.1 s")
    assert ends[1].recv(1) == b""


def test_heartbeats_keep_it_and_are_nobodys_notice(ends: tuple[socket.socket, socket.socket]) -> None:
    member = Member(ends[0], 0.5)
    for rank in range(20):
        with pytest.raises(queue.Empty):
            member.closed.get(timeout=0.05)
        ends[1].sendall(encode(Heartbeat()))
        if rank % 5 == 0:
            ends[1].sendall(encode(Departed(rank)))
            assert member.heard.get(timeout=LIMIT_S) == Departed(rank)
    assert member.heard.empty()
    ends[1].close()
    member.check_lost("connection closed")


def test_a_thread_that_sends_does_not_wait_for_ever(ends: tuple[socket.socket, socket.socket]) -> None:
    member = Member(ends[0], 0.3)

    def send_until_it_blocks() -> None:
        while True:
            member.client.notify(Leave())

    with pytest.raises(PeerLost):
        send_until_it_blocks()
    member.check_lost("no heartbeat for 0.3 s")


def test_a_message_that_cannot_be_handled_ends_the_membership(
    ends: tuple[socket.socket, socket.socket], caplog: pytest.LogCaptureFixture
) -> None:
    member = Member(ends[0], LIMIT_S)
    ends[1].sendall(encode(End()))
    member.check_lost("cannot handle its message: boom")
    assert [record.exc_info is not None for record in caplog.records] == [True]
