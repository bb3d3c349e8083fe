"""Noticing that a parameter is read, wherever that happens.

Modules keep their parameters in ``_parameters``; attribute access, ``parameters()`` and ``state_dict()`` all
read that dict. A watched module has one in its place that first tells whoever watches the parameter. Some
modules keep parameters elsewhere too, as recurrent layers do; those count as read when the module is called.

Code compiled by ``torch.compile`` reads parameters past the dict. Those of a compiled module count as read
when it is called. For other compiled code there is no such moment, but it is noticed when it is compiled.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, ItemsView, Iterator, Mapping, Sequence, ValuesView
from typing import Any, Protocol, TypeVar

import torch
from torch.compiler import is_compiling
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


class Listener(Protocol):
    """Told that code is being compiled which reads parameters without notice."""

    def code_is_compiled(self) -> None:
        """It will run soon."""
        ...


class Compilation:
    """Tells listeners about compiled code. Modules of one model share it.

    Attributes:
        listeners: Whom to tell.
        seen: Whether there is such code.
        mark: What the compiler calls while it comes across a read; compiled code does not contain the call.
    """

    def __init__(self) -> None:
        self.listeners: weakref.WeakSet[Listener] = weakref.WeakSet()
        self.seen = False
        here = weakref.ref(self)

        def mark() -> None:
            if (compilation := here()) is not None:
                compilation.seen = True
                for listener in list(compilation.listeners):
                    listener.code_is_compiled()

        mark._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as by assume_constant_result
        self.mark: Callable[[], None] = mark


class WatchedParameters(dict[str, "Parameter | None"]):
    """The ``_parameters`` of a module, whose reads are noticed. Copies and pickles are plain dicts.

    Attributes:
        watched: As in ``Place``.
        compilation: Of the module's model.
    """

    __slots__ = ("compilation", "watched")

    watched: dict[str, Watcher]
    compilation: Compilation

    def __init__(self, parameters: Mapping[str, Parameter | None], compilation: Compilation) -> None:
        super().__init__(parameters)
        self.watched = {}
        self.compilation = compilation

    def __getitem__(self, name: str) -> Parameter | None:
        if is_compiling():
            self.compilation.mark()
            # Modules that look alike share compiled code. Having been looked at, this makes a difference.
            assert self.compilation.seen
        elif self.watched:
            watcher = self.watched.get(name)
            if watcher is not None:
                watcher.before_use()
        return dict.__getitem__(self, name)

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

    def __call__(self, module: Module, inputs: Any) -> None:
        """The module is about to run."""
        if not is_compiling():
            self.before_use()

    def before_use(self) -> None:
        """Tell all who watch."""
        for watcher in list(self.watched.values()):
            watcher.before_use()

    def __reduce__(self) -> Any:
        return WatchedCalls, ()


class CompiledCalls(WatchedCalls):
    """Stands before a compiled module, whose parameters all count as read when it is called."""

    def wrap(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """For a module that was compiled in place: what to call instead of the compiled code."""

        def call(*args: Any, **kwargs: Any) -> Any:
            self.before_use()
            return compiled(*args, **kwargs)

        call.calls = self  # type: ignore[attr-defined]
        return call


Places = Sequence[tuple[Place, str]]
"""Where a parameter can be read, and its name there."""


def is_being_compiled() -> bool:
    """Whether it is the compiler that reads."""
    return torch._guards.TracingContext.try_get() is not None


def watch(model: Module, listener: Listener) -> dict[int, list[tuple[Place, str]]]:
    """Notice reads of the parameters of all modules of a model from now on.

    Args:
        model: The model.
        listener: Told about compiled code.

    Returns:
        For each parameter by its ``id``: where it can be read, and its name there. It may be called again;
        modules that are watched already stay so.
    """
    places: dict[int, list[tuple[Place, str]]] = {}
    compilation = Compilation()
    for module in model.modules():
        kept = module.__dict__.get("_parameters")
        if type(kept) is dict:
            kept = module.__dict__["_parameters"] = WatchedParameters(kept, compilation)
        if isinstance(kept, WatchedParameters):
            kept.compilation.listeners.add(listener)
            for name, parameter in dict.items(kept):
                if parameter is not None:
                    places.setdefault(id(parameter), []).append((kept, name))
        if strays := list(_strays(module)):
            _add(places, _hook_of(module, WatchedCalls), strays)
        if (calls := _compiled_calls(module)) is not None:
            _add(places, calls, list(_parameters_below(module)))
    return places


def _add(places: dict[int, list[tuple[Place, str]]], place: Place, parameters: Sequence[Parameter]) -> None:
    for number, parameter in enumerate(parameters):
        places.setdefault(id(parameter), []).append((place, f"{number}"))


def _strays(module: Module) -> Iterator[Parameter]:
    """Parameters that a module keeps in other attributes of its own, or in lists, tuples and dicts there."""
    for name, value in module.__dict__.items():
        if name not in ("_parameters", "_modules", "_buffers"):
            values = value.values() if isinstance(value, dict) else value
            if isinstance(value, dict | list | tuple):
                yield from (each for each in values if isinstance(each, Parameter))
            elif isinstance(value, Parameter):
                yield value


def _parameters_below(module: Module) -> Iterator[Parameter]:
    """All parameters of a module, without reading them."""
    for each in module.modules():
        kept = each.__dict__.get("_parameters", {})
        yield from (parameter for parameter in dict.values(kept) if parameter is not None)


def _compiled_calls(module: Module) -> CompiledCalls | None:
    """What stands before a module's compiled code, if it is compiled."""
    if isinstance(module, torch._dynamo.OptimizedModule):  # what torch.compile(module) makes
        return _hook_of(module, CompiledCalls)
    compiled: Any = module._compiled_call_impl  # what module.compile() makes
    if compiled is None:
        return None
    if not hasattr(compiled, "calls"):
        compiled = module._compiled_call_impl = CompiledCalls().wrap(compiled)
    calls: CompiledCalls = compiled.calls
    return calls


Calls = TypeVar("Calls", bound=WatchedCalls)


def _hook_of(module: Module, kind: type[Calls]) -> Calls:
    """The one hook of a kind that a module has."""
    for hook in module._forward_pre_hooks.values():
        if type(hook) is kind:
            return hook
    made = kind()
    module.register_forward_pre_hook(made)
    return made
