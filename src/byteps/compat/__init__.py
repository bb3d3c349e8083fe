"""Other libraries' module names, for scripts that are not to be changed."""

from __future__ import annotations
