"""Trials in files, one for each model, world and link speed; later jobs begin with what such a file found."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from byteps.diagnostics import size
from byteps.errors import ConfigError
from byteps.tuning.tuner import Timing, Trial, Tuner
from byteps.wire import Knobs

FORMAT = 1


class Line(msgspec.Struct, frozen=True):
    """A trial.

    Attributes:
        kind: See ``tuner.Trial``.
        knobs: Bytes by name; those that are 0 were automatic.
        seconds: Of each step.
        cut: Whether it was given up early.
    """

    kind: str
    knobs: dict[str, int]
    seconds: list[float]
    cut: bool


class Found(msgspec.Struct, frozen=True):
    """What one job's tuning did, as it stands in a file.

    Attributes:
        format: Of the file.
        model: The model's signature.
        world: Workers and servers.
        rate_log2: Logarithm of the link's bytes per second.
        step_bytes: Of all tensors of a step.
        trials: In order.
        best: The fastest setting.
        settled: Whether the search was over.
        reason: Why.
    """

    format: int
    model: str
    world: str
    rate_log2: int
    step_bytes: int
    trials: list[Line]
    best: dict[str, int]
    settled: bool
    reason: str


class Record:
    """The file of one job's search.

    Args:
        folder: Where files are.
        model, world, rate_log2, step_bytes: See ``Found``.
    """

    def __init__(self, folder: Path, model: str, world: str, rate_log2: int, step_bytes: int) -> None:
        self._what = (model, world, rate_log2, step_bytes)
        words = re.sub(r"[^a-z0-9]+", "-", world)
        self.path = folder / f"{model}-{words}-{rate_log2}.json"

    def known(self) -> Knobs | None:
        """What an earlier search that came to its end has found; None if there was none."""
        try:
            found = load(self.path)
        except (ConfigError, OSError):
            return None
        return Knobs(**found.best) if found.settled and any(found.best.values()) else None

    def save(self, tuner: Tuner) -> None:
        """Write what the search did so far.

        Raises:
            OSError: It cannot be written.
        """
        lines = [
            Line(one.kind, as_dict(one.knobs), list(one.measured.seconds), one.measured.cut)
            for one in tuner.trials
        ]
        found = Found(FORMAT, *self._what, lines, as_dict(tuner.best), tuner.settled, tuner.reason)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        written = self.path.with_suffix(f".{os.getpid()}")
        try:
            written.write_bytes(msgspec.json.format(msgspec.json.encode(found)))
            written.replace(self.path)  # a reader sees the old file or the new one
        finally:
            with contextlib.suppress(FileNotFoundError):
                written.unlink()


def load(path: Path) -> Found:
    """Read a file.

    Raises:
        ConfigError: It is not such a file.
        OSError: It cannot be read.
    """
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Found)
        Knobs(**found.best)
    except (msgspec.MsgspecError, TypeError) as error:
        raise ConfigError(f"{path} holds no trials of byteps: {error}") from error
    if found.format != FORMAT:
        raise ConfigError(f"{path} is of another version of byteps (format {found.format}, not {FORMAT})")
    return found


def default_folder() -> Path:
    """Where results are kept unless somebody says."""
    return Path.home() / ".cache" / "byteps" / "tuning"


def as_dict(knobs: Knobs) -> dict[str, int]:
    """Bytes by name."""
    return {name: getattr(knobs, name) for name in knobs.__struct_fields__}


def describe(knobs: Knobs) -> str:
    """Sizes for people: ``partition 128.0 KiB, credit 1.0 MiB``; what is automatic is left out."""
    sizes = [
        f"{name.removesuffix('_bytes')} {size(nbytes)}" for name, nbytes in as_dict(knobs).items() if nbytes
    ]
    return ", ".join(sizes) or "automatic"


def trials(found: Found) -> Sequence[Trial]:
    """The trials of a file."""
    return [Trial(one.kind, Knobs(**one.knobs), Timing(tuple(one.seconds), one.cut)) for one in found.trials]
