"""What a torch script's training steps compute, by layer: seen through hooks while it runs in this process.

Marks are set where a module that holds parameters begins, where a backward pass begins, where each gradient
is complete, and where the optimizer steps. The time between two marks belongs to the layer of the first one.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook

from byteps.errors import BytePSError
from byteps.planner.profile import Layer, Profile

WARM_STEPS = 2
"""Steps that do not count: in the first, the optimizer's parameters become known, and caches fill."""
BETWEEN = "between steps"
"""The name of what is neither forward nor backward pass: data, optimizer, the script's own work."""


class Recorded(BaseException):
    """Enough steps were seen: ends the script. No ``Exception``, so that the script does not handle it."""


@dataclass
class _Pass:
    """Marks of one training step, in seconds of the clock.

    Args:
        root: The first module, by its identity.
        modules: Modules that hold parameters, each when it began, in order.
        backwards: When each backward pass began.
        ready: When each parameter's gradient was last added to, by its identity.
        end_s: When the optimizer's step began.
    """

    root: int = 0
    modules: list[tuple[int, float]] = field(default_factory=list)
    backwards: list[float] = field(default_factory=list)
    ready: dict[int, float] = field(default_factory=dict)
    end_s: float = 0.0


class Recorder:
    """Sets the hooks and keeps the marks.

    Args:
        steps: Training steps that count; then the script is ended.
    """

    def __init__(self, steps: int) -> None:
        self._wanted = steps
        self._current = _Pass()
        self._steps: list[_Pass] = []
        self._seen_steps = 0
        self._modules: dict[int, nn.Module] = {}
        self._roots: dict[int, nn.Module] = {}
        self._parameters: dict[int, Tensor] = {}
        self._inside = 0
        self._batch = 0
        self._undo: list[Callable[[], object]] = []

    def __enter__(self) -> Recorder:
        """Begin to watch."""
        backward = torch.autograd.backward
        handles = [
            register_module_forward_pre_hook(self._begins),
            register_optimizer_step_pre_hook(self._steps_now),
        ]

        def marked(*arguments: Any, **named: Any) -> None:
            self._current.backwards.append(_now(self._device()))
            backward(*arguments, **named)

        torch.autograd.backward = marked  # Tensor.backward looks it up there
        self._undo = [lambda: setattr(torch.autograd, "backward", backward), *(h.remove for h in handles)]
        return self

    def __exit__(self, *_: object) -> None:
        """No longer watch."""
        for undo in self._undo:
            undo()

    def profile(self, name: str, batch_size: float = 0.0) -> Profile:
        """What was seen.

        Args:
            name: Of the model in reports.
            batch_size: Samples of a step; 0: the first dimension of what the model was given.

        Raises:
            BytePSError: There was no training step, or none with a backward pass.
        """
        if not self._seen_steps:
            raise BytePSError(
                "no optimizer step was seen: the script has to train with a torch.optim optimizer, "
                "in this process"
            )
        counted = [step for step in self._steps[WARM_STEPS:] if step.ready and step.modules]
        if not counted:
            seen = f"{self._seen_steps} optimizer step{'s' if self._seen_steps > 1 else ''} seen, but "
            if self._seen_steps <= WARM_STEPS:
                raise BytePSError(
                    f"{seen}the first {WARM_STEPS} do not count: let the script take more steps"
                )
            if not any(step.backwards for step in self._steps):
                raise BytePSError(
                    f"{seen}no backward pass: the script has to call loss.backward() before each"
                )
            raise BytePSError(
                f"{seen}no gradient of the optimizer's parameters between them: no module of torch.nn was "
                "called, or loss.backward() did not reach its parameters"
            )
        return self._summary(name, counted, batch_size)

    def _begins(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if not torch.is_grad_enabled():
            return
        if not self._current.root:
            self._note_root(module, inputs)
        if module._parameters:
            self._modules[id(module)] = module
            self._current.modules.append((id(module), _now(self._device())))

    def _note_root(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        """The first module of a step is the model: it names the parameters."""
        self._current.root = id(module)
        self._roots[id(module)] = module
        first = next((value for value in inputs if isinstance(value, Tensor) and value.dim()), None)
        if first is not None:
            self._batch = int(first.shape[0])

    def _steps_now(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) not in self._parameters and parameter.requires_grad:
                    self._parameters[id(parameter)] = parameter
                    handle = parameter.register_post_accumulate_grad_hook(self._is_ready)
                    self._undo.append(handle.remove)
        self._seen_steps += 1
        if not self._current.backwards and self._steps:
            return  # another optimizer of the same step
        self._current.end_s = _now(self._device())
        self._steps.append(self._current)
        self._current = _Pass()
        if len(self._steps) >= WARM_STEPS + self._wanted:
            raise Recorded

    def _is_ready(self, parameter: Tensor) -> None:
        self._current.ready[id(parameter)] = _now(self._device())

    def _device(self) -> str:
        parameter = next(iter(self._parameters.values()), None)
        return parameter.device.type if parameter is not None else "cpu"

    def _summary(self, name: str, counted: Sequence[_Pass], batch_size: float) -> Profile:
        order = list(dict.fromkeys(number for number, _ in counted[-1].modules))
        owners = self._owners(order)
        forward: dict[int, list[float]] = {number: [] for number in order}
        backward: dict[int, list[float]] = {number: [] for number in order}
        between: list[float] = []
        for before, step in zip([None, *counted], counted, strict=False):
            marks = _forward_times(step)
            for number in order:
                forward[number].append(marks.get(number, 0.0))
            for number, time_s in _backward_times(step, order, owners).items():
                backward[number].append(time_s)
            if before is not None:
                between.append(step.modules[0][1] - max(before.ready.values()))
        names = {id(module): path for root in self._roots.values() for path, module in root.named_modules()}
        layers = [
            Layer(
                names.get(number) or type(self._modules[number]).__name__,
                tuple(self._nbytes(parameter) for parameter, owner in owners.items() if owner == number),
                statistics.median(forward[number]),
                statistics.median(backward[number]),
            )
            for number in order
        ]
        rest = Layer(BETWEEN, (), max(0.0, statistics.median(between)) if between else 0.0, 0.0)
        origin = f"recorded on {self._device()}, median of {len(counted)} steps"
        return Profile(name, (rest, *layers), batch_size or self._batch or 1, origin)

    def _nbytes(self, parameter: int) -> int:
        tensor = self._parameters[parameter]
        return tensor.numel() * tensor.element_size()

    def _owners(self, order: Sequence[int]) -> dict[int, int]:
        """Each of the optimizer's parameters' layer: the first that holds it, or the nearest around it."""
        owners: dict[int, int] = {}
        for recurse in (False, True):
            for number in order if not recurse else reversed(order):
                for parameter in self._modules[number].parameters(recurse):
                    if id(parameter) in self._parameters:
                        owners.setdefault(id(parameter), number)
        return {number: owners.get(number, order[0]) for number in self._parameters}


def _now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def _forward_times(step: _Pass) -> dict[int, float]:
    """Each module's share of the first forward pass, which ends where the first backward pass begins."""
    ends_s = step.backwards[0] if step.backwards else step.modules[-1][1]
    marks = [mark for mark in step.modules if mark[1] <= ends_s]
    times: dict[int, float] = {}
    for (number, begin_s), (_, end_s) in zip(marks, [*marks[1:], (0, ends_s)], strict=True):
        times[number] = times.get(number, 0.0) + end_s - begin_s
    return times


def _backward_times(step: _Pass, order: Sequence[int], owners: dict[int, int]) -> dict[int, float]:
    """Each layer's share of the backward pass, if their gradients became ready from last to first.

    With several passes before a step, all between the first and the last belongs to the last layer: it comes
    before any gradient is ready.
    """
    latest: dict[int, float] = {}
    for parameter, moment_s in step.ready.items():
        number = owners[parameter]
        latest[number] = max(latest.get(number, 0.0), moment_s)
    times: dict[int, float] = {}
    at_s = step.backwards[0] if step.backwards else min(latest.values())
    for number in reversed(order):
        ready_s = max(at_s, latest.get(number, at_s))
        times[number] = ready_s - at_s
        at_s = ready_s
    return times
