"""Horovod's module names for byteps: after ``install()``, or under ``byteps run --as-horovod``, scripts that
``import horovod.torch`` run as they are.

``horovod.X`` is the module of that name in this package, else the adapter ``byteps.X``.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from byteps.launch.function import run
from byteps.launch.horovodrun import ON_PATH

__all__ = ["install", "run"]

_NAME = "horovod"
_HERE = "byteps.compat.horovod"
_ADAPTERS = "byteps"


def install() -> None:
    """Have ``import horovod`` and its submodules find byteps, whether or not Horovod is installed.

    To be called before the first such import of the process. Calling it again does nothing.

    Raises:
        ImportError: Horovod itself has been imported already.
    """
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    if getattr(sys.modules.get(_NAME), "__file__", None) not in (None, str(ON_PATH / _NAME / "__init__.py")):
        raise ImportError(
            "horovod has been imported already: call byteps.compat.horovod.install() before that"
        )
    sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Finds ``horovod`` and what is in it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See ``importlib.abc.MetaPathFinder``; None where byteps has nothing of that name."""
        if fullname != _NAME and not fullname.startswith(f"{_NAME}."):
            return None
        inside = fullname[len(_NAME) :]
        for place in (_HERE, _ADAPTERS) if inside else (_HERE,):
            if _exists(place + inside):
                return ModuleSpec(fullname, _Alias(place + inside), is_package=True)
        return None


class _Alias(Loader):
    """Gives a module a second name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def exec_module(self, module: ModuleType) -> None:
        """Put the module itself in the place of the empty one that the import has made."""
        sys.modules[module.__name__] = importlib.import_module(self._name)


def _exists(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # its parent is no package
        return False
