"""The command ``byteps profile``: runs a training script in this process and records its steps."""

from __future__ import annotations

import argparse
import runpy
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from byteps.diagnostics import count, duration, size
from byteps.errors import BytePSError, ConfigError
from byteps.planner import bounds
from byteps.planner.profile import checked, save

if TYPE_CHECKING:
    from byteps.planner.recording import Recorder

_EPILOG = """\
The script runs in this process, without byteps or with it; after the steps that are wanted it is ended.
The profile holds each layer's gradient bytes, and the time of its forward and backward pass on this machine,
so run it where you will train, with one GPU. If the script fails, its own traceback and exit code are shown.

examples:
  byteps profile python train.py --epochs 1
  byteps profile --output model.json --steps 20 python -m package.train
  byteps plan --profile model.json --workers 8 --link-gbit 25
"""


def add_profile(parser: argparse.ArgumentParser) -> None:
    """Options of ``byteps profile``."""
    parser.epilog = _EPILOG
    parser.usage = "byteps profile [--output FILE] [--steps N] [--batch-size N] python SCRIPT [ARGUMENT ...]"
    parser.add_argument("--output", type=Path, default=Path("profile.json"), help="profile.json by default")
    parser.add_argument("--steps", type=int, default=10, metavar="N", help="training steps that count (10)")
    batch = "samples per step, if the first input of the model does not show it"
    parser.add_argument("--batch-size", type=float, default=0.0, metavar="N", help=batch)
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="python SCRIPT", help="what to run")
    parser.set_defaults(run=_profile)


def _profile(arguments: argparse.Namespace) -> int:
    module, words = script(arguments.words)
    if arguments.steps < 1:
        raise ConfigError(f"--steps {arguments.steps}: at least one step has to count")
    try:
        from byteps.planner.recording import Recorder
    except ImportError as error:
        raise BytePSError(f"byteps profile watches torch, which cannot be imported here: {error}") from error
    recorder = Recorder(arguments.steps)
    code = _run(recorder, module, words)
    if code:
        print(f"byteps profile: the script ended with {code}; nothing was recorded", file=sys.stderr)
        return code
    name = module or Path(words[0]).stem
    profile = checked(recorder.profile(name, arguments.batch_size), "of this run")
    save(profile, arguments.output)
    layers = count(len(profile.layers) - 1, "layer")
    time_s = bounds.compute_s(profile.layers)
    print(f"{name}: {layers}, {size(profile.nbytes)} of gradients, {duration(time_s)} a step")
    print(f"{arguments.output}: {profile.batch_size:g} samples a step, {profile.origin}")
    print(f"next: byteps plan --profile {arguments.output} --workers 8 --link-gbit 25")
    return 0


def script(words: list[str]) -> tuple[str, list[str]]:
    """The module to run, if it is one, and the script with its arguments.

    Raises:
        ConfigError: There is nothing to run, or it is no Python script.
    """
    words = words[1:] if words[:1] == ["--"] else words
    if words and Path(words[0]).name.startswith("python"):
        words = words[1:]
    if words[:1] == ["-u"]:
        words = words[1:]
    if words[:1] == ["-m"] and len(words) > 1:
        return words[1], words[1:]
    if not words or words[0].startswith("-"):
        raise ConfigError("say what to run: byteps profile python train.py, or python -m package.train")
    if not Path(words[0]).is_file():
        raise ConfigError(f"there is no script {words[0]}")
    return "", words


def _run(recorder: Recorder, module: str, words: list[str]) -> int:
    """The script's exit code; its traceback is printed as Python itself would."""
    from byteps.planner.recording import Recorded

    old_words, old_path = sys.argv, sys.path[:]
    sys.argv = words
    sys.path.insert(0, str(Path.cwd() if module else Path(words[0]).resolve().parent))
    try:
        with recorder:
            if module:
                runpy.run_module(module, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(words[0], run_name="__main__")
    except Recorded:
        return 0
    except SystemExit as exit:
        return _exit_code(exit)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        traceback.print_exception(type(error), error, _own(error.__traceback__))
        return 1
    finally:
        sys.argv, sys.path[:] = old_words, old_path
    return 0


def _exit_code(exit: SystemExit) -> int:
    if exit.code is None or isinstance(exit.code, int):
        return exit.code or 0
    print(exit.code, file=sys.stderr)
    return 1


def _own(trace: TracebackType | None) -> TracebackType | None:
    """The part of a traceback that begins in the script, past this module and runpy; all if none does."""
    ours = {__file__, runpy.__file__}
    at = trace
    while at is not None and (
        at.tb_frame.f_code.co_filename in ours or "<frozen" in at.tb_frame.f_code.co_filename
    ):
        at = at.tb_next
    return at if at is not None else trace
