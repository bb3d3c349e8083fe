"""Mutual proof of the shared token at the start of every connection.

Four fixed-size frames. Each begins with the magic number and the version, so that peers of another version,
and strangers, are recognised before anything else is read::

    connector -> Hello      identity, nonce
    acceptor  -> Challenge  identity, nonce, HMAC(token, "acceptor" Hello Challenge)
    connector -> Proof      HMAC(token, "connector" Hello Challenge)
    acceptor  -> Verdict    accepted, or the reason in words

Both MACs (HMAC-SHA256) cover both nonces and both identities, so neither can be replayed, reflected, or used
for another role, rank, job, purpose, lane or epoch. What follows on the connection is not covered.

The steps are generators without I/O: they yield bytes to send or a number of bytes to read. ``drivers`` runs
them over a socket.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import secrets
import struct
from collections.abc import Callable, Generator

from byteps.errors import HandshakeError

VERSION = 2

_MAGIC = b"BPSh"
_PREFIX = struct.Struct("!4sB3x")
# role, purpose, has_token, tls, number, lane, epoch, length of job_id, job_id, nonce
_IDENTITY = struct.Struct("!BBBBiIQB64s32s")
_VERDICT = struct.Struct("!BH197s")
_MAC_BYTES = hashlib.sha256().digest_size
_NONCE_BYTES = 32
_MAX_JOB_ID_BYTES = 64
_MAX_REASON_BYTES = 197
_ROLES = ("worker", "server", "coordinator")
_PURPOSES = ("control", "data", "beacon", "memory")
_TOKEN_HELP = "give all processes of the job the same BYTEPS_AUTH_TOKEN_FILE or BYTEPS_AUTH_TOKEN"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who one end of a connection is and what the connection is for.

    Args:
        role: "worker", "server" or "coordinator".
        number: rank of a worker or number of a server; -1 where it has none yet.
        job_id: name of the job, at most 64 bytes of UTF-8; must be equal at both ends.
        purpose: "control", "data", "beacon" or "memory"; must be equal at both ends.
        lane: which of several parallel data connections.
        epoch: version of the membership.
        tls: whether TLS starts right after the handshake; must be equal at both ends.
    """

    role: str
    number: int = -1
    job_id: str = "byteps"
    purpose: str = "control"
    lane: int = 0
    epoch: int = 0
    tls: bool = False

    def __post_init__(self) -> None:
        if self.role not in _ROLES or self.purpose not in _PURPOSES:
            raise ValueError(f"no such role or purpose: {self.role!r}, {self.purpose!r}")
        if len(self.job_id.encode()) > _MAX_JOB_ID_BYTES:
            raise ValueError(f"job_id {self.job_id!r} is longer than {_MAX_JOB_ID_BYTES} bytes")

    def __str__(self) -> str:
        return f"{self.role} {self.number}" if self.number >= 0 else self.role


Steps = Generator["int | bytes", bytes, Identity]
"""Yields bytes to send (answered by ``b""``) or how many bytes to read; returns the peer's identity."""


def connect_steps(token: bytes, identity: Identity) -> Steps:
    """The connecting end's steps.

    Args:
        token: the job's shared secret; empty for none.
        identity: who this end is.

    Raises:
        HandshakeError: saying what was wrong and what to set.
    """
    hello = _pack_identity(identity, token)
    yield _prefix() + hello
    yield from _read_prefix()
    challenge = yield _IDENTITY.size
    proof = yield _MAC_BYTES
    peer, has_token = _unpack_identity(challenge)
    _compare_presence(token, has_token, peer)
    if not hmac.compare_digest(proof, _mac(token, b"acceptor", hello, challenge)):
        # A MAC that cannot be right tells the acceptor that its own token is not ours.
        yield _prefix() + bytes(_MAC_BYTES)
        raise HandshakeError(_wrong_token(peer))
    yield _prefix() + _mac(token, b"connector", hello, challenge)
    yield from _read_prefix()
    verdict = yield _VERDICT.size
    accepted, length, reason = _VERDICT.unpack(verdict)
    if not accepted:
        raise HandshakeError(
            f"the {peer} refused this {identity}: {reason[:length].decode(errors='replace')}"
        )
    return peer


def accept_steps(
    token: bytes,
    identity: Identity | Callable[[Identity], Identity],
    check: Callable[[Identity], str] = lambda peer: "",
) -> Steps:
    """The accepting end's steps.

    Args:
        token: the job's shared secret; empty for none.
        identity: who this end is, and the purpose that it accepts; or what gives that for who the peer says
            it is, where one port takes connections for several purposes.
        check: asked about a peer that has proved itself; returns a reason to refuse it, or empty text. The
            peer is told the reason.

    Raises:
        HandshakeError: saying what was wrong and what to set.
    """
    yield from _read_prefix(answer=_prefix())
    hello = yield _IDENTITY.size
    peer, has_token = _unpack_identity(hello)
    own = identity(peer) if callable(identity) else identity
    challenge = _pack_identity(own, token)
    yield _prefix() + challenge + _mac(token, b"acceptor", hello, challenge)
    _compare_presence(token, has_token, peer)
    yield from _read_prefix()
    proof = yield _MAC_BYTES
    if not hmac.compare_digest(proof, _mac(token, b"connector", hello, challenge)):
        raise HandshakeError(_wrong_token(peer))
    reason = _mismatch(own, peer) or check(peer)
    text = reason.encode()[:_MAX_REASON_BYTES]
    yield _prefix() + _VERDICT.pack(not reason, len(text), text)
    if reason:
        raise HandshakeError(f"refused the {peer}: {reason}")
    return peer


def _prefix() -> bytes:
    return _PREFIX.pack(_MAGIC, VERSION)


def _read_prefix(answer: bytes = b"") -> Generator[int | bytes, bytes, None]:
    """Read and check a frame's first bytes, before anything else is read.

    Args:
        answer: sent to a peer of another version, so that it can tell what it has reached.
    """
    prefix = yield _PREFIX.size
    magic, version = _PREFIX.unpack(prefix)
    if magic != _MAGIC:
        raise HandshakeError(
            f"the peer does not speak the protocol of byteps (it began with {prefix[:4]!r}); "
            f"check the address and the port"
        )
    if version != VERSION:
        if answer:
            yield answer
        raise HandshakeError(
            f"the peer speaks version {version} of the handshake, this process version {VERSION}; "
            f"install the same byteps on all hosts"
        )


def _pack_identity(identity: Identity, token: bytes) -> bytes:
    job_id = identity.job_id.encode()
    return _IDENTITY.pack(
        _ROLES.index(identity.role),
        _PURPOSES.index(identity.purpose),
        bool(token),
        identity.tls,
        identity.number,
        identity.lane,
        identity.epoch,
        len(job_id),
        job_id,
        secrets.token_bytes(_NONCE_BYTES),
    )


def _unpack_identity(frame: bytes) -> tuple[Identity, bool]:
    """The identity in a frame, and whether its sender has a token."""
    role, purpose, has_token, tls, number, lane, epoch, length, job_id, _nonce = _IDENTITY.unpack(frame)
    try:
        identity = Identity(
            role=_ROLES[role],
            number=number,
            job_id=job_id[:length].decode(),
            purpose=_PURPOSES[purpose],
            lane=lane,
            epoch=epoch,
            tls=bool(tls),
        )
    except (IndexError, UnicodeDecodeError) as error:
        raise HandshakeError(
            "the peer sent a malformed identity; install the same byteps on all hosts"
        ) from error
    return identity, bool(has_token)


def _mac(token: bytes, direction: bytes, hello: bytes, challenge: bytes) -> bytes:
    return hmac.digest(token, b"byteps handshake " + direction + _prefix() + hello + challenge, "sha256")


def _compare_presence(token: bytes, peer_has_token: bool, peer: Identity) -> None:
    if bool(token) != peer_has_token:
        who = f"the {peer} has" if peer_has_token else "this process has"
        other = "this process has none" if peer_has_token else f"the {peer} has none"
        raise HandshakeError(f"{who} a token and {other}; {_TOKEN_HELP}")


def _wrong_token(peer: Identity) -> str:
    return f"the token of the {peer} is not this process's; {_TOKEN_HELP}"


def _mismatch(own: Identity, peer: Identity) -> str:
    """Why two ends that share a token still do not belong together; empty if they do."""
    if peer.job_id != own.job_id:
        return f"it belongs to job {peer.job_id!r}, not {own.job_id!r}; give all processes one BYTEPS_JOB_ID"
    if peer.purpose != own.purpose:
        return f"it wants a {peer.purpose} connection, but this port takes {own.purpose} connections"
    if peer.tls != own.tls:
        with_tls, without = (peer.role, own.role) if peer.tls else (own.role, peer.role)
        return f"the {with_tls} uses TLS and the {without} does not; set BYTEPS_TLS_CERT, _KEY and _CA on all"
    return ""
