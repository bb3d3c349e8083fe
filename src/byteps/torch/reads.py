"""Noticing that a parameter is read, wherever that happens.

Modules keep their parameters in ``_parameters``; attribute access, ``parameters()`` and ``state_dict()`` all
read that dict. A watched module has one in its place that first tells whoever watches the parameter. Some
modules keep parameters elsewhere too, as recurrent layers do; those count as read when the module is called.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from typing import Any, Protocol

import torch
from torch.nn import Module, Parameter


class Watcher(Protocol):
    """Told before a parameter is read."""

    def before_use(self) -> None:
        """A forward pass, or somebody who looks at this parameter, reads it."""
        ...

    def before_listing(self) -> None:
        """It is read together with the module's others, for example by ``parameters()``."""
        ...


class Place(Protocol):
    """Where a parameter can be read.

    Attributes:
        watched: Whom to tell, by the name that the parameter has there.
    """

    watched: dict[str, Watcher]


class WatchedParameters(dict[str, "Parameter | None"]):
    """The ``_parameters`` of a module, whose reads are noticed. Copies and pickles are plain dicts.

    Attributes:
        watched: As in ``Place``.
    """

    __slots__ = ("watched",)

    watched: dict[str, Watcher]

    def __init__(self, parameters: Mapping[str, Parameter | None]) -> None:
        super().__init__(parameters)
        self.watched = {}

    def __getitem__(self, name: str) -> Parameter | None:
        if self.watched:
            watcher = self.watched.get(name)
            if watcher is not None:
                watcher.before_use()
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """See ``dict``."""
        if name not in self:
            return default
        return self[name]

    def pop(self, name: str, *default: Any) -> Any:
        """See ``dict``."""
        if name in self:
            self[name]
        return super().pop(name, *default)

    def items(self) -> ItemsView[str, Parameter | None]:  # type: ignore[override]
        """See ``dict``."""
        self._list()
        return super().items()

    def values(self) -> ValuesView[Parameter | None]:  # type: ignore[override]
        """See ``dict``."""
        self._list()
        return super().values()

    def copy(self) -> dict[str, Parameter | None]:
        """A plain dict."""
        return dict(self.items())

    def __iter__(self) -> Iterator[str]:
        # Its presence makes dict(self) and {**self} go through __getitem__.
        return super().__iter__()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return dict, (), None, None, iter(self.items())

    def _list(self) -> None:
        for watcher in list(self.watched.values()):
            watcher.before_listing()


class WatchedCalls:
    """A forward pre-hook of a module that keeps parameters elsewhere. Its copies do nothing.

    Attributes:
        watched: As in ``Place``.
    """

    def __init__(self) -> None:
        self.watched: dict[str, Watcher] = {}

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, module: Module, inputs: Any) -> None:
        """The module is about to run."""
        for watcher in list(self.watched.values()):
            watcher.before_use()

    def __reduce__(self) -> Any:
        return WatchedCalls, ()


def watch(model: Module) -> dict[int, list[tuple[Place, str]]]:
    """Notice reads of the parameters of all modules of a model from now on.

    Returns:
        Where each parameter can be read, by its ``id``, and its name there. It may be called again; modules
        that are watched already stay so.
    """
    places: dict[int, list[tuple[Place, str]]] = {}
    for module in model.modules():
        kept = module.__dict__.get("_parameters")
        if type(kept) is dict:
            kept = module.__dict__["_parameters"] = WatchedParameters(kept)
        if isinstance(kept, WatchedParameters):
            for name, parameter in dict.items(kept):
                if parameter is not None:
                    places.setdefault(id(parameter), []).append((kept, name))
        strays = list(_strays(module))
        if strays:
            hook = _hook_of(module)
            for number, parameter in enumerate(strays):
                places.setdefault(id(parameter), []).append((hook, f"{number}"))
    return places


def _strays(module: Module) -> Iterator[Parameter]:
    """Parameters that a module keeps in other attributes of its own, or in lists, tuples and dicts there."""
    for name, value in module.__dict__.items():
        if name not in ("_parameters", "_modules", "_buffers"):
            yield from _parameters_in(value)


def _parameters_in(value: object) -> Iterator[Parameter]:
    if isinstance(value, Parameter):
        yield value
    elif isinstance(value, list | tuple):
        yield from (each for each in value if isinstance(each, Parameter))
    elif isinstance(value, dict):
        yield from (each for each in value.values() if isinstance(each, Parameter))


def _hook_of(module: Module) -> WatchedCalls:
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, WatchedCalls):
            return hook
    made = WatchedCalls()
    module.register_forward_pre_hook(made)
    return made
