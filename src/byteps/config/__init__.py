"""Settings: one frozen ``Config``, filled by ``resolve()`` from arguments, environment and file.

``fields`` holds the settings and their help, ``names`` the variables that set them, ``launchers`` who
started this process, ``resolving`` the order of precedence, ``reference`` the documentation. ``environment``
is the only module of the package that reads the process environment.
"""

from __future__ import annotations

from byteps.config.addresses import format_address, parse_address
from byteps.config.environment import child_environment, visible_devices
from byteps.config.fields import DEFAULT_PARTITION_BYTES, Config
from byteps.config.reference import Row, describe, reference_table
from byteps.config.resolving import Resolved, resolve

__all__ = [
    "DEFAULT_PARTITION_BYTES",
    "Config",
    "Resolved",
    "Row",
    "child_environment",
    "describe",
    "format_address",
    "parse_address",
    "reference_table",
    "resolve",
    "visible_devices",
]
