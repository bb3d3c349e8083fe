"""What members say about the file that holds their token."""

from __future__ import annotations

from pathlib import Path

import pytest

from byteps.testing import run_ranks

from .sockets import socket_job


def test_each_member_warns_of_an_open_token_file_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """However many connections it opens: five members here, and some twenty connections."""
    path = tmp_path / "token"
    path.write_text("correct horse")
    path.chmod(0o644)
    with socket_job(2, servers=2, connections=2, auth_token_file=str(path)) as sessions:
        run_ranks(sessions, lambda session: session.barrier())
    assert caplog.text.count("is open to other users; run: chmod 600") == 5
