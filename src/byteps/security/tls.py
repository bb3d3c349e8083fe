"""TLS for the control plane: mutual, version 1.3, with certificates of the job's own authority."""

from __future__ import annotations

from typing import TYPE_CHECKING

from byteps.config import Config
from byteps.errors import ConfigError

if TYPE_CHECKING:
    import ssl


def server_tls(config: Config) -> ssl.SSLContext | None:
    """TLS 1.3 for the accepting end of a control connection; None when TLS is not configured.

    Raises:
        ConfigError: a file is missing or is no valid PEM.
    """
    import ssl  # most processes run without TLS

    return _tls(config, ssl.PROTOCOL_TLS_SERVER)


def client_tls(config: Config) -> ssl.SSLContext | None:
    """TLS 1.3 for the connecting end of a control connection; None when TLS is not configured.

    Raises:
        ConfigError: a file is missing or is no valid PEM.
    """
    import ssl  # most processes run without TLS

    return _tls(config, ssl.PROTOCOL_TLS_CLIENT)


def _tls(config: Config, protocol: int) -> ssl.SSLContext | None:
    """Mutual TLS: both ends show a certificate of the job's own authority."""
    import ssl

    if not (config.tls_cert and config.tls_key and config.tls_ca):
        return None
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # Processes move between hosts, and the authority is the job's own: belonging to it is what counts.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_cert_chain(config.tls_cert, config.tls_key)
        context.load_verify_locations(config.tls_ca)
    except OSError as error:
        files = f"tls_cert {config.tls_cert}, tls_key {config.tls_key}, tls_ca {config.tls_ca}"
        raise ConfigError(f"cannot use the TLS files ({files}): {error}") from error
    return context
