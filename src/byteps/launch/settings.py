"""Settings on the command line: an option for each, and ``byteps config``, which shows them all."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection

from byteps.config import Config, Resolved, describe, resolve
from byteps.config.fields import FIELDS

IDENTITY = frozenset(
    {
        *("role", "rank", "size", "local_rank", "local_size", "nodes", "node_rank", "launcher"),
        *("num_servers", "coordinator", "server_weight"),
    }
)
"""What a launcher decides for the processes that it starts."""

NOT_OPTIONS = frozenset({"auth_token", "launcher"})
"""Other users of a machine can read command lines, so the token has no option."""

_ALIASES = {"size": ("--num-workers",)}
_DEST = "setting_"


def add_settings(parser: argparse.ArgumentParser, *, without: Collection[str] = ()) -> None:
    """Give a parser one option per setting, named as the setting is.

    Args:
        parser: gets the options.
        without: settings that get none.
    """
    group = parser.add_argument_group(
        "settings", "Each can also be given as BYTEPS_<NAME>; `byteps config` shows what is in force."
    )
    for name, field in FIELDS.items():
        if name in NOT_OPTIONS or name in without:
            continue
        option = "--" + name.replace("_", "-")
        text = field.metadata["help"].replace("%", "%%")
        names = (option, *_ALIASES.get(name, ()))
        if field.type == "bool" and field.default:
            group.add_argument(
                *names, dest=_DEST + name, action=argparse.BooleanOptionalAction, default=None, help=text
            )
        elif field.type == "bool":
            group.add_argument(*names, dest=_DEST + name, action="store_const", const=True, help=text)
        else:
            unit = field.metadata["unit"].split(" ")[0] or ("N" if field.type == "int" else "WORD")
            group.add_argument(*names, dest=_DEST + name, metavar=unit.upper(), help=text)


def given(arguments: argparse.Namespace) -> dict[str, object]:
    """The settings that the command line gave, by field name."""
    return {
        name.removeprefix(_DEST): value
        for name, value in vars(arguments).items()
        if name.startswith(_DEST) and value is not None
    }


def resolve_given(arguments: argparse.Namespace, **more: object) -> Resolved:
    """Resolve the settings with those of the command line, and say what is odd about them on stderr.

    Args:
        arguments: the parsed command line.
        more: settings that the command itself decides, by field name.

    Raises:
        ConfigError: a setting cannot work.
    """
    resolved = resolve(cli={**given(arguments), **more})
    # A launcher has told the user already; its children keep quiet.
    for warning in [] if getattr(arguments, "leash", None) else resolved.warnings:
        print(f"byteps: warning: {warning}", file=sys.stderr)
    return resolved


def add_config(parser: argparse.ArgumentParser) -> None:
    """Options of ``byteps config``."""
    parser.epilog = (
        "examples:\n"
        "  byteps config                          all settings\n"
        "  byteps config --json | jq .size        for programs\n"
        "  byteps config --role coordinator       as a coordinator would see them"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_settings(parser)
    parser.set_defaults(run=_show)


def _show(arguments: argparse.Namespace) -> int:
    resolved = resolve_given(arguments)
    if arguments.json:
        print(json.dumps(_as_json(resolved), indent=2))
        return 0
    rows = describe(resolved)
    name_width = max(len(row.name) for row in rows)
    value_width = min(40, max(len(row.value) for row in rows))
    for row in rows:
        print(f"{row.name:<{name_width}}  {row.value or '-':<{value_width}}  {row.origin}")
    return 0


def _as_json(resolved: Resolved) -> dict[str, dict[str, object]]:
    hidden = {row.name: row.value for row in describe(resolved) if row.value == "(hidden)"}
    config: Config = resolved.config
    return {
        name: {"value": hidden.get(name, getattr(config, name)), "origin": resolved.origins[name]}
        for name in FIELDS
    }
