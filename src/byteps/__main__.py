"""``python -m byteps`` is the ``byteps`` command; launchers start coordinator and servers this way."""

from __future__ import annotations

import sys

from byteps.cli import main

if __name__ == "__main__":
    sys.exit(main())
