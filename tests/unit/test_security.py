"""Tokens, who may listen without one, and TLS contexts."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

import pytest

from byteps.config import Config
from byteps.errors import ConfigError
from byteps.security import (
    check_bind,
    client_tls,
    load_token,
    server_tls,
    token_to_make,
    warn_of_open_token,
)

TOKEN = b"correct horse"

# Tokens


def test_new_tokens_differ() -> None:
    first, second = token_to_make(Config()), token_to_make(Config())
    assert first != second
    assert len(bytes.fromhex(first)) == 32


def test_the_token_file_comes_first(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "token"
    path.write_text("  from file\n")
    path.chmod(0o600)
    assert load_token(Config(auth_token="given", auth_token_file=str(path))) == b"from file"
    assert load_token(Config(auth_token="given")) == b"given"
    assert load_token(Config()) == b""
    assert caplog.records == []
    warn_of_open_token(Config(auth_token_file=str(path)))
    warn_of_open_token(Config(auth_token_file=str(path / "missing")))
    assert caplog.records == []
    path.chmod(0o640)
    warn_of_open_token(Config(auth_token_file=str(path)))
    assert "chmod 600" in caplog.text
    assert "from file" not in caplog.text


def test_a_useless_token_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    with pytest.raises(ConfigError, match=r"cannot read the token file .*No such file"):
        load_token(Config(auth_token_file=str(path)))
    path.write_text(" \n")
    with pytest.raises(ConfigError, match="is empty"):
        load_token(Config(auth_token_file=str(path)))


# Listening


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_needs_no_token(host: str) -> None:
    check_bind(host, b"", insecure=False)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "10.0.0.1", "fe80::1%lo", "no.such.host.invalid"])
def test_elsewhere_a_token_or_consent_is_needed(host: str, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigError, match=r"refusing to listen on .*BYTEPS_AUTH_TOKEN.*--insecure"):
        check_bind(host, b"", insecure=False)
    check_bind(host, TOKEN, insecure=False)
    assert caplog.records == []
    check_bind(host, b"", insecure=True)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


# TLS


# A self-signed certificate, its own authority, valid from 2020 to 2120. It guards nothing but these tests.
KEY = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgEhy2ZUp9Y5ARlVON
exkifGZ1qtggqy585LwJpaPD2gihRANCAATBtlLmSwoRrTI/kULOqk1TexGPDOaD
IQOEAtfovcwyYYXVdTeaBbWmJC5y/pVkzPFLQx/AsZqfWI5YajgSNykc
-----END PRIVATE KEY-----
"""
CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBYjCCAQigAwIBAgIUUMi/Fs+Z6ubNDpgAkuQTNLMMVGIwCgYIKoZIzj0EAwIw
FjEUMBIGA1UEAwwLYnl0ZXBzIHRlc3QwIBcNMjAwMTAxMDAwMDAwWhgPMjEyMDAx
MDEwMDAwMDBaMBYxFDASBgNVBAMMC2J5dGVwcyB0ZXN0MFkwEwYHKoZIzj0CAQYI
KoZIzj0DAQcDQgAEwbZS5ksKEa0yP5FCzqpNU3sRjwzmgyEDhALX6L3MMmGF1XU3
mgW1piQucv6VZMzxS0MfwLGan1iOWGo4EjcpHKMyMDAwDwYDVR0TAQH/BAUwAwEB
/zAdBgNVHQ4EFgQUfnPGXwFS5RKwU4uk/fnWJJjXLY8wCgYIKoZIzj0EAwIDSAAw
RQIgZuphGYNOcJO1/SGW68rKvJKcw0AvQE5yDhy1sBHCcy0CIQDU5/3zJxdI7UNL
tFBimtRBofc3ZV7V21aWteuQgc/TMw==
-----END CERTIFICATE-----
"""


@pytest.fixture
def certificate(tmp_path: Path) -> Config:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    cert.write_text(CERTIFICATE)
    key.write_text(KEY)
    return Config(tls_cert=str(cert), tls_key=str(key), tls_ca=str(cert))


def tls_exchange(server: ssl.SSLContext, client: ssl.SSLContext) -> str | None:
    """Let two contexts talk in memory; return the version spoken."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return ends[1].version()


def test_tls_is_mutual(certificate: Config) -> None:
    server, client = server_tls(certificate), client_tls(certificate)
    assert server is not None
    assert client is not None
    assert tls_exchange(server, client) == "TLSv1.3"
    stranger = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    stranger.check_hostname = False
    stranger.load_verify_locations(certificate.tls_ca)
    with pytest.raises(ssl.SSLError, match=r"(?i)peer did not return a certificate"):
        tls_exchange(server, stranger)


def test_without_files_there_is_no_tls() -> None:
    assert server_tls(Config()) is None
    assert client_tls(Config()) is None


def test_bad_tls_files_are_named(certificate: Config, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.pem")
    with pytest.raises(ConfigError, match=r"missing\.pem"):
        server_tls(Config(tls_cert=missing, tls_key=missing, tls_ca=missing))
    with pytest.raises(ConfigError, match="cannot use the TLS files"):
        client_tls(
            Config(tls_cert=certificate.tls_cert, tls_key=certificate.tls_cert, tls_ca=certificate.tls_ca)
        )
