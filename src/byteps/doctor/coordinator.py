"""Whether the coordinator that is configured can be reached, and whether its clock agrees with this one."""

from __future__ import annotations

import dataclasses
import time

from byteps.config import Config
from byteps.control import ControlClient
from byteps.dialing import open_control
from byteps.doctor.findings import Finding, fail, ok, warn
from byteps.errors import BytePSError, HandshakeError

_TIMEOUT_S = 3.0
_SKEW_S = 1.0


def check_coordinator(config: Config) -> list[Finding]:
    """Connect, prove the token, ask for the time and hang up: nobody joins."""
    if not config.coordinator:
        return [ok("coordinator", "none configured: a launcher tells, or this is a job of one process")]
    quick = dataclasses.replace(config, join_timeout_s=min(_TIMEOUT_S, config.join_timeout_s))
    begin_s = time.monotonic()
    try:
        offset_s, uncertainty_s = _ask_clock(quick)
    except HandshakeError as error:
        advice = "give all hosts the same token, job_id, TLS files and version of byteps"
        return [fail("coordinator", str(error), advice)]
    except BytePSError as error:
        advice = "start it (byteps coordinator), or correct BYTEPS_COORDINATOR, DNS or the firewall"
        return [fail("coordinator", str(error), advice)]
    took_ms = 1e3 * (time.monotonic() - begin_s)
    reached = ok("coordinator", f"{config.coordinator} accepts this host ({took_ms:.1f} ms with handshake)")
    return [reached, _clock(offset_s, uncertainty_s)]


def _ask_clock(config: Config) -> tuple[float, float]:
    """How far the coordinator's clock is ahead of this one, and how well that is known, in seconds."""
    client = ControlClient(lambda message: None, lambda reason: None)
    open_control(config, client, "worker")
    try:
        sent_s = time.time()
        wall_s = client.wall_clock_s(_TIMEOUT_S)
        uncertainty_s = (time.time() - sent_s) / 2
        return wall_s - sent_s - uncertainty_s, uncertainty_s
    finally:
        client.close()


def _clock(offset_s: float, uncertainty_s: float) -> Finding:
    text = f"the coordinator's is {offset_s:+.3f} s from this one (known to {uncertainty_s:.3f} s)"
    if abs(offset_s) > _SKEW_S + uncertainty_s:
        return warn("clock there", text, "run a time service (chrony) on both hosts: logs cannot be compared")
    return ok("clock there", text)
