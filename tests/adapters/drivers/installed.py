"""The drivers of the frameworks that are installed."""

from __future__ import annotations

import functools
import importlib
import importlib.util

from .interface import Driver

_CLASSES = {
    "torch": "TorchDriver",
    "tensorflow": "TensorFlowDriver",
    "jax": "JaxDriver",
    "mxnet": "MXNetDriver",
}
DRIVERS = [name for name in _CLASSES if importlib.util.find_spec(name) is not None]


@functools.cache
def driver_of(framework: str) -> Driver:
    """The one of a framework."""
    module = importlib.import_module(f"tests.adapters.drivers.{framework}_driver")
    made: Driver = getattr(module, _CLASSES[framework])()
    return made
