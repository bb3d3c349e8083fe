"""The settings for readers: the rows of ``byteps config`` and the page docs/configuration.md."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from byteps.config.fields import FIELDS
from byteps.config.launchers import IDENTITY, LAUNCHERS
from byteps.config.names import COMPUTED_NAMES, IGNORED_NAMES, OLD_NAMES, spellings
from byteps.config.parsing import allowed
from byteps.config.resolving import Resolved

_HEAD = """\
# Configuration

This page is written by `byteps.config.reference_table()`; a test holds it to the code.
`byteps config` prints every value and where it came from.

A setting may be given in several places. The first of these counts:

1. an argument of `init()`
2. an option of the command line
3. a `BYTEPS_*` variable
4. a name of another tool (below)
5. `byteps.toml` in the current directory, with the names of the first column as keys
6. the default

An empty variable counts as not set. Sizes may be written as `4MiB` (KiB, MiB, GiB). Variables that begin with
`BYTEPS_` and are no setting are reported with the nearest name.
Durations may also be written without their unit: `BYTEPS_PEER_TIMEOUT`.
"""

_LAUNCHERS = """\
Rank, size and their kin come from one launcher, the first row that gives both rank and size, unless
`BYTEPS_RANK` and `BYTEPS_SIZE` are set. `DMLC_NUM_WORKER` with `DMLC_WORKER_ID` goes before all rows. Tasks
per node are read from `SLURM_STEP_TASKS_PER_NODE` or `SLURM_TASKS_PER_NODE` where Slurm sets them, and a
batch script that srun did not start is no task. With neither launcher nor coordinator a process is a job of
its own: size 1, rank 0.
"""


class Row(NamedTuple):
    """One setting as ``byteps config`` prints it."""

    name: str
    value: str
    origin: str
    help: str


def describe(resolved: Resolved) -> list[Row]:
    """One row per setting, in the order of the documentation. The token's value is hidden."""
    rows = []
    for name, field in FIELDS.items():
        value = getattr(resolved.config, name)
        shown = "(hidden)" if field.metadata["secret"] and value else _show(value)
        rows.append(Row(name, shown, resolved.origins[name], field.metadata["help"]))
    return rows


def reference_table() -> str:
    """The text of docs/configuration.md."""
    fields = (
        (f"`{name}`", f"`{spellings(name)[0]}`" if spellings(name) else "", *_value(name)) for name in FIELDS
    )
    old = [(f"`{name}`", f"`{field}`{_old_note(name)}") for name, field in OLD_NAMES]
    computed = [(f"`{name}`", text) for name, text in COMPUTED_NAMES]
    launchers = ((name, *(f"`{variable}`" for variable in names)) for name, names in LAUNCHERS)
    ignored = ((", ".join(f"`{name}`" for name in names), reason) for reason, names in IGNORED_NAMES)
    return "\n".join(
        (
            _HEAD,
            "## Settings\n",
            _table(("setting", "variable", "default", "allowed", "meaning"), fields),
            "## Names of BytePS and Horovod\n",
            _table(("name", "sets"), computed + old),
            "## Launchers\n",
            _LAUNCHERS,
            _table(("launcher", *(f"`{name}`" for name in IDENTITY)), launchers),
            "## Names without meaning\n",
            "One warning names those that are set.\n",
            _table(("names", "instead"), ignored),
        )
    )


def _value(name: str) -> tuple[str, str, str]:
    field = FIELDS[name]
    shown = _show(field.default)
    return (
        f"`{shown}`" if shown else "empty",
        allowed(field).replace("one of ,", "empty,"),
        field.metadata["help"],
    )


def _old_note(name: str) -> str:
    return ", below 1024 in partitions, else in bytes" if name == "BYTEPS_SCHEDULING_CREDIT" else ""


def _show(value: object) -> str:
    return (
        str(int(value))
        if isinstance(value, bool)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A Markdown table; short rows are filled up with empty cells."""
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for row in rows:
        cells = (*row, *("" for _ in range(len(head) - len(row))))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
