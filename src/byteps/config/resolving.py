"""Fill a ``Config``: arguments, command line, ``BYTEPS_*``, other tools' names, ``byteps.toml``, defaults."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from byteps.config.addresses import format_address
from byteps.config.environment import environment
from byteps.config.fields import DEFAULT_PARTITION_BYTES, FIELDS, MAX_PARTITION_BYTES, Config
from byteps.config.launchers import IDENTITY, Setting, Settings, identity
from byteps.config.names import ARGUMENTS, OLD_NAMES, is_ignored, is_unknown, spellings, variable
from byteps.config.parsing import parse
from byteps.dtypes import GRAIN_BYTES
from byteps.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

FILE_NAME = "byteps.toml"

# BYTEPS_SCHEDULING_CREDIT counted partitions; no link is served by fewer bytes than this.
_LEAST_CREDIT_BYTES = 1024


_TRACE_DIRECTORY = "./trace"
_TRACE_STEPS = (10, 20)


@dataclasses.dataclass(frozen=True, slots=True)
class Resolved:
    """A filled configuration, where each value came from, and what the user should be told."""

    config: Config
    origins: dict[str, str]
    warnings: list[str]


def resolve(
    arguments: Mapping[str, object] | None = None,
    *,
    cli: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> Resolved:
    """Find the value of every setting.

    Args:
        arguments: given by the calling program, by field name; None means not given.
        cli: given on the command line, by field name; None means not given.
        environ: the environment; this process's by default.
        directory: where ``byteps.toml`` may lie; the current directory by default.

    Raises:
        ConfigError: a value is not allowed, contradicts another, or an argument or file cannot be understood.
    """
    variables = environment() if environ is None else environ
    warnings = _odd_names(variables)
    told = [
        _given(arguments or {}, "argument {}"),
        _given(cli or {}, "--{}", hyphens=True),
        _from_variables(variables),
    ]
    levels = [*told, _from_old_names(variables, _merge(told), warnings), _from_file(directory, warnings)]
    settings = _merge(levels)
    _derive(settings)
    _fit_bytes(settings, warnings)
    config = Config(**{name: setting.value for name, setting in settings.items()})
    _check_together(config, settings)
    origins = {name: settings[name].origin if name in settings else "default" for name in FIELDS}
    return Resolved(config, origins, warnings)


def _given(values: Mapping[str, object], label: str, *, hyphens: bool = False) -> Settings:
    """Settings given by field name."""
    found: Settings = {}
    for given, value in values.items():
        name = ARGUMENTS.get(given, given)
        if name not in FIELDS:
            raise ConfigError(f"there is no setting {name!r}{_hint(name, FIELDS)}")
        if value is not None:
            origin = label.format(name.replace("_", "-") if hyphens else name)
            found[name] = Setting(parse(FIELDS[name], value, origin), origin)
    return found


def _from_variables(environ: Mapping[str, str]) -> Settings:
    """Settings from ``BYTEPS_<FIELD>``. An empty variable counts as not set."""
    found: Settings = {}
    for field in FIELDS:
        for name in spellings(field):
            if field not in found and environ.get(name):
                found[field] = Setting(parse(FIELDS[field], environ[name], name), name)
    return found


def _from_old_names(
    environ: Mapping[str, str], given: Mapping[str, Setting], warnings: list[str]
) -> Settings:
    """Settings from the names of BytePS, Horovod and the launchers."""
    found: Settings = {}
    for name, field in OLD_NAMES:
        if field not in found and environ.get(name):
            found[field] = Setting(parse(FIELDS[field], environ[name], name), name)
    stronger = {**found, **given}
    role = str(stronger["role"].value) if "role" in stronger else "worker"
    root = _root(environ, role)
    launched = identity(environ, {name: value for name, value in stronger.items() if name in IDENTITY}, role)
    coordinator = given.get("coordinator") or root.get("coordinator")
    if "launcher" in launched and launched["launcher"].value == "torchrun" and coordinator is not None:
        # The job's coordinator is known, so nothing has to travel through torchrun's store.
        launched["launcher"] = Setting("dmlc" if "coordinator" in root else "byteps", coordinator.origin)
    return {**launched, **root, **_traced(environ), **_transport(environ), **found}


def _traced(environ: Mapping[str, str]) -> Settings:
    """What BytePS's ``BYTEPS_TRACE_ON`` stands for: a timeline of steps 10 to 20 in a folder."""
    if environ.get("BYTEPS_TRACE_ON", "0") in ("", "0"):
        return {}
    folder = environ.get("BYTEPS_TRACE_DIR") or _TRACE_DIRECTORY
    found = {"timeline": Setting(f"{folder}/timeline.json.gz", "BYTEPS_TRACE_ON")}
    for field, step in (("trace_start_step", _TRACE_STEPS[0]), ("trace_end_step", _TRACE_STEPS[1])):
        found[field] = Setting(step, "BYTEPS_TRACE_ON")
    return found


def _transport(environ: Mapping[str, str]) -> Settings:
    """What BytePS's names stand for: RDMA, or shared memory on the same host, or not."""
    for name in ("DMLC_ENABLE_RDMA", "DMLC_ENABLE_UCX"):
        if environ.get(name, "0") not in ("", "0", "zmq"):
            return {"transport": Setting("ucx", name)}
    name = "BYTEPS_ENABLE_IPC"
    if not environ.get(name):
        return {}
    return {"transport": Setting("tcp" if environ[name] == "0" else "auto", name)}


def _root(environ: Mapping[str, str], role: str) -> Settings:
    """The coordinator's address in BytePS's two variables; the coordinator itself listens there."""
    names = ("DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT")
    host, port = (environ.get(name, "").strip() for name in names)
    if not host and not port:
        return {}
    if not host or not port:
        missing, present = names if port else names[::-1]
        raise ConfigError(f"{present} is set but {missing} is not; set both to the coordinator's address")
    number = Setting(parse(FIELDS["port"], port, names[1]), names[1])
    address = format_address(host.strip("[]"), number.value)
    origin = " + ".join(names)
    found = {"coordinator": Setting(parse(FIELDS["coordinator"], address, origin), origin)}
    if role == "coordinator":
        anywhere = environ.get("DMLC_USE_KUBERNETES", "0") not in ("", "0")
        found["port"] = number
        found["bind_host"] = (
            Setting("0.0.0.0", "DMLC_USE_KUBERNETES") if anywhere else Setting(host.strip("[]"), names[0])
        )
    return found


def _from_file(directory: Path | None, warnings: list[str]) -> Settings:
    """Settings from ``byteps.toml``, if there is one."""
    path = FILE_NAME if directory is None else directory / FILE_NAME
    try:
        with open(path, "rb") as file:
            text = file.read()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    # Imported late: most processes have no such file, and a command's start should not wait for the parser.
    tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        values = tomllib.loads(text.decode())
    except ValueError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    for name in sorted(set(values) - set(FIELDS)):
        warnings.append(f"{path}: {name!r} is not a setting and is ignored{_hint(name, FIELDS)}")
    return _given({name: values[name] for name in values if name in FIELDS}, f"{FILE_NAME}: {{}}")


def _merge(levels: Iterable[Settings]) -> Settings:
    """Put levels on top of each other, the strongest first."""
    merged: Settings = {}
    for level in levels:
        # A token and a token file are one setting in two forms: the stronger source decides which counts.
        secret = "auth_token" in merged or "auth_token_file" in merged
        for name, setting in level.items():
            if name not in merged and not (secret and name.startswith("auth_token")):
                merged[name] = setting
    return merged


def _derive(settings: Settings) -> None:
    """Fill in what follows: without launcher and coordinator this is a job of one process."""
    role = settings["role"].value if "role" in settings else "worker"
    if role != "worker":
        return
    if not _told(settings, "size") and not _told(settings, "coordinator") and not _told(settings, "launcher"):
        settings["size"] = Setting(1, "default: no launcher and no coordinator")
    if _told(settings, "size") == 1:
        for name, value in (("rank", 0), ("local_rank", 0), ("local_size", 1)):
            if name not in settings or settings[name].value == FIELDS[name].default:
                settings[name] = Setting(value, "follows from size = 1")


def _told(settings: Settings, name: str) -> object:
    """The value of a setting, None (or falsy) where nobody told it."""
    return settings[name].value if name in settings else None


def _fit_bytes(settings: Settings, warnings: list[str]) -> None:
    """Bring ``partition_bytes`` to whole grains within its limit and ``credit_bytes`` to bytes."""
    automatic = Setting(DEFAULT_PARTITION_BYTES, "default")
    partition = settings.get("partition_bytes", automatic)
    if not partition.value:
        partition = automatic
    if partition.value > MAX_PARTITION_BYTES:
        warnings.append(
            f"{partition.origin} is {partition.value} bytes; more than {MAX_PARTITION_BYTES} (64 MiB) gains "
            f"nothing, so that is used"
        )
    grains = -(-min(partition.value, MAX_PARTITION_BYTES) // GRAIN_BYTES)
    if partition is not automatic:
        settings["partition_bytes"] = dataclasses.replace(partition, value=grains * GRAIN_BYTES)
    credit = settings.get("credit_bytes")
    if credit and credit.origin == "BYTEPS_SCHEDULING_CREDIT" and credit.value < _LEAST_CREDIT_BYTES:
        settings["credit_bytes"] = dataclasses.replace(credit, value=credit.value * grains * GRAIN_BYTES)


def _check_together(config: Config, settings: Settings) -> None:
    """Refuse values that contradict each other."""

    def named(name: str) -> str:
        value = getattr(config, name)
        return f"{name} = {value} (from {settings[name].origin if name in settings else 'default'})"

    for inner, outer in (("rank", "size"), ("local_rank", "local_size"), ("node_rank", "nodes")):
        if 0 < getattr(config, outer) <= getattr(config, inner):
            raise ConfigError(f"{named(inner)} must be below {named(outer)}; ranks count from 0")
    if 0 < config.size < config.local_size:
        raise ConfigError(f"{named('local_size')} must not be above {named('size')}")
    if config.peer_timeout_s < 2 * config.heartbeat_s:
        raise ConfigError(f"{named('peer_timeout_s')} must be at least twice {named('heartbeat_s')}")
    if 0 < config.trace_end_step < config.trace_start_step:
        raise ConfigError(f"{named('trace_start_step')} must not be above {named('trace_end_step')}")
    if config.extra_servers and config.communicator == "allreduce":
        raise ConfigError(
            f"{named('extra_servers')} contradicts {named('communicator')}, which has no servers"
        )
    files = [name for name in ("tls_cert", "tls_key", "tls_ca") if getattr(config, name)]
    if 0 < len(files) < 3:
        missing = sorted({"tls_cert", "tls_key", "tls_ca"} - set(files))
        raise ConfigError(
            f"{' and '.join(map(named, files))} set, but TLS also needs {' and '.join(missing)}"
        )


def _odd_names(environ: Mapping[str, str]) -> list[str]:
    """Warnings about variables that look meant for byteps and have no effect."""
    warnings = []
    for name in sorted(environ):
        if is_unknown(name, environ[name]):
            documented = [variable(field) for field in FIELDS if spellings(field)]
            warnings.append(f"{name} is not a setting and is ignored{_hint(name, documented)}")
    ignored = sorted(name for name in environ if is_ignored(name))
    if ignored:
        warnings.append(
            f"these variables of other tools have no meaning here and are ignored: {', '.join(ignored)}; "
            f"docs/configuration.md says what to use instead"
        )
    return warnings


def _hint(name: str, known: Iterable[str]) -> str:
    """The end of a sentence that names the nearest known name, if one is near."""
    import difflib  # only a mistake needs it

    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""
