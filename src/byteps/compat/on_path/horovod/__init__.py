"""``horovod`` for programs that have this folder on their PYTHONPATH: byteps stands in for it."""

from __future__ import annotations

import sys

from byteps.compat import horovod as _byteps

_byteps.install()
sys.modules[__name__] = _byteps
