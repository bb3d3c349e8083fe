"""Ranks as threads, as in the tests of all adapters. Nothing is collected where MXNet is not installed."""

from __future__ import annotations

import importlib.util

from tests.adapters.conftest import ranks

__all__ = ["ranks"]

# Other frameworks do not take MXNet's numpy: these tests run in an environment of their own (make test).
collect_ignore_glob = ["*"] if importlib.util.find_spec("mxnet") is None else []
