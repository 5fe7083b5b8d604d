"""Overrides in, filled schema out; and what Hydra and OmegaConf say about bad ones, in the project's words.

Every override is checked on its own before Hydra composes: its grammar, its key, its option, whether it can have any
effect. What only composing can tell (types, files, interpolations) is translated afterwards.
"""

from __future__ import annotations

import copy
import itertools
import types
import typing
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, QuotedString
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from harness.config import schema
from harness.config.errors import ConfigError, refusal
from harness.config.schema import CONF, GROUPS, Config
from masks.spelling import allowed_names

VERSION_BASE = "1.3"


def load(overrides: Sequence[str]) -> Config:
    """Compose ``conf/config.yaml`` with the overrides of one job.

    Raises:
        ConfigError: an override that cannot be read, names nothing, has the wrong type, or would be ignored.
    """
    parsed = parse(overrides, multirun=False)
    schema.register()
    try:
        with initialize_config_dir(str(CONF), version_base=VERSION_BASE):
            composed = compose("config", list(overrides), return_hydra_config=True)
        _refuse_hydra_settings(composed)
        return to_config(composed)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(_translate(error, parsed)) from error


def to_config(composed: DictConfig) -> Config:
    """The composed node as the schema's dataclass, interpolations resolved."""
    plain = copy.deepcopy(composed)
    with read_write(plain), open_dict(plain):
        plain.pop("hydra", None)
    found = OmegaConf.to_object(plain)
    if not isinstance(found, Config):
        raise ConfigError(f"the configuration has the form {type(found).__name__}; config.yaml must start from schema.")
    return found


def parse(overrides: Sequence[str], multirun: bool) -> list[Override]:
    """The overrides, each checked as far as it can be on its own.

    Raises:
        ConfigError: for the first bad one.
    """
    parser = OverridesParser.create()
    found: list[Override] = []
    for text in overrides:
        try:
            item = parser.parse_override(text)
        except HydraException as error:
            raise ConfigError(_unreadable(text)) from error
        _check(item, text, multirun)
        if any(item.key_or_group == earlier.key_or_group for earlier in found):
            raise ConfigError(f"{item.key_or_group} is given twice; the first one would be ignored.")
        found.append(item)
    return found


def jobs(overrides: Sequence[str], multirun: bool) -> list[list[str]]:
    """The overrides of every job, in the order in which Hydra's own sweeper runs them.

    Raises:
        ConfigError: as :func:`parse`, and for a sweep over something that all jobs share.
    """
    items = parse(overrides, multirun)
    if not multirun:
        return [list(overrides)]
    choices: list[list[str]] = []
    for item in items:
        key = item.get_key_element()
        if not item.is_sweep_override():
            choices.append([str(item.input_line)])
        elif not item.is_discrete_sweep():
            raise ConfigError(f"{item.input_line}: an interval has no list of values; write them out: {key}=1,2,3")
        elif key == "results_dir":
            raise ConfigError("results_dir is swept over; the jobs of one --multirun share one results folder.")
        else:
            values = _globbed(item) if _is_glob(item) else item.sweep_string_iterator()
            choices.append([f"{key}={value}" for value in values])
    return [list(job) for job in itertools.product(*choices)]


# -- one override -----------------------------------------------------------------------------------------------------


def _unreadable(text: str) -> str:
    key, equals, value = text.partition("=")
    if not equals:
        return f"{text!r} is not an override; write key=value"
    quoted = value.replace("\\", "\\\\").replace('"', '\\"')
    return (
        f"{text!r} cannot be read: a value with = , # [ ] {{ }} ( ) : quotes or letters outside ASCII needs quotes of its "
        f"own, inside those of the shell: '{key}=\"{quoted}\"'"
    )


def _check(item: Override, text: str, multirun: bool) -> None:
    key = item.key_or_group
    if key == "hydra" or key.startswith(("hydra.", "hydra/")):
        raise ConfigError(
            f"{text!r}: Hydra's own settings are fixed here: output goes to results_dir, and the jobs of a --multirun run one "
            "after another in this process."
        )
    _check_key(key)
    if item.is_delete() or item.is_add() or item.is_force_add():
        raise ConfigError(f"{text!r}: keys are neither added nor taken away here; write {key}=value")
    if item.package is not None:
        raise ConfigError(f"{text!r}: a package (@{item.package}) has no meaning here; write {key}=value")
    for value in _values(item, text, multirun):
        if key in GROUPS:
            _check_option(key, value, text)
        else:
            _check_value(key, schema.keys()[key], value, text)


def _check_key(key: str) -> None:
    known = schema.keys()
    group, dot, last = key.partition(".")
    if key in known and last == "name" and group in GROUPS:
        raise ConfigError(f"{key} is the name of the file; choose one by {group}=NAME: {', '.join(schema.options(group))}")
    if key in GROUPS or key in known:
        return
    within = [name for name in known if name.startswith(f"{group}.")]
    if not (dot and within):
        within = [*GROUPS, *(name for name in known if "." not in name)]
    raise ConfigError(f"there is no key {key}; {allowed_names(key, within)}")


def _values(item: Override, text: str, multirun: bool) -> Iterator[Any]:
    if not item.is_sweep_override():
        yield item.value()
        return
    if not multirun:
        key = item.key_or_group
        _, _, value = text.partition("=")
        bare = _bare(schema.keys().get(key))
        hint = f" For a list write {key}=[{value}]." if typing.get_origin(bare) is list else ""
        if bare is str:
            hint = f" For one value with a comma in it write '{key}=\"{value}\"'."
        raise ConfigError(f"{text!r} gives several values. To run them one after another add --multirun.{hint}")
    if item.is_discrete_sweep():
        yield from (_globbed(item) if _is_glob(item) else item.sweep_iterator())


def _is_glob(item: Override) -> bool:
    return isinstance(item.value(), Glob)


def _globbed(item: Override) -> list[str]:
    """The options that a glob stands for."""
    glob, group = item.value(), item.key_or_group
    names: list[str] = glob.filter(schema.options(group)) if group in GROUPS and isinstance(glob, Glob) else []
    if not names:
        raise ConfigError(f"{item.input_line}: no option matches. A glob chooses options of {', '.join(GROUPS)}.")
    return sorted(names)


def _check_option(group: str, value: Any, text: str) -> None:
    names = schema.options(group)
    if value is None or isinstance(value, dict | list):
        raise ConfigError(f"{text!r}: one option is chosen by its name; allowed: {', '.join(names)}")
    if _text(value) not in names:
        raise ConfigError(refusal(group, _text(value), names))


def _check_value(key: str, kind: Any, value: Any, text: str) -> None:
    """Refuse what OmegaConf would take by conversion: 2 for a bool, a number retyped for a name."""
    bare = _bare(kind)
    if value is None:
        if type(None) not in typing.get_args(kind):
            raise ConfigError(f"{key}=null is not allowed; {_expected(kind)}.")
        return
    if bare is bool and not isinstance(value, bool):
        raise ConfigError(f"{key}={_text(value)} is not allowed; it is true or false.")
    if bare is str and isinstance(value, int | float):
        raw = text.partition("=")[2]
        if _text(value) != raw:
            raise ConfigError(f"{text!r} would be read as {_text(value)}; to mean the text write '{key}=\"{raw}\"'.")
    if typing.get_origin(bare) is list and not isinstance(value, list):
        raise ConfigError(f"{key}={_text(value)} is not allowed; it is a list: {key}=[{_text(value)}].")
    if isinstance(bare, type) and issubclass(bare, Enum):
        _check_member(key, bare, value)
    if typing.get_origin(bare) is list:
        (inner,) = typing.get_args(bare)
        for entry in value:
            if isinstance(entry, list | dict):
                raise ConfigError(f"{text!r}: a list in a list; {_expected(kind)}")
            if isinstance(inner, type) and issubclass(inner, Enum):
                _check_member(key, inner, entry)


def _check_member(key: str, kind: type[Enum], value: Any) -> None:
    name = _text(value)
    if name not in kind.__members__:
        raise ConfigError(refusal(key, name, kind.__members__))


def _text(value: Any) -> str:
    if isinstance(value, QuotedString):
        return str(value.text)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _bare(kind: Any) -> Any:
    """The type without ``| None``."""
    if isinstance(kind, types.UnionType):
        return next(arm for arm in typing.get_args(kind) if arm is not type(None))
    return kind


def _expected(kind: Any) -> str:
    bare = _bare(kind)
    if isinstance(bare, type) and issubclass(bare, Enum):
        return "allowed: " + ", ".join(bare.__members__)
    if typing.get_origin(bare) is list:
        (inner,) = typing.get_args(bare)
        return f"it is a list [a,b]; in it, {_expected(inner)}"
    names = {int: "it is an integer", float: "it is a number", bool: "it is true or false", str: "it is a text"}
    return names[bare]


# -- what only composing can tell -------------------------------------------------------------------------------------


def _refuse_hydra_settings(composed: DictConfig) -> None:
    """A file on the search path may not turn Hydra's settings: a launcher set there would be taken and ignored."""
    hydra = composed.hydra
    fixed = {
        "hydra.launcher": str(hydra.launcher.get("_target_")).endswith("BasicLauncher"),
        "hydra.sweeper": str(hydra.sweeper.get("_target_")).endswith("BasicSweeper") and not hydra.sweeper.get("params"),
        "hydra.run.dir": hydra.run.dir == composed.results_dir,
        "hydra.output_subdir": hydra.output_subdir is None,
        "hydra.job.chdir": hydra.job.chdir is False,
    }
    for name, kept in fixed.items():
        if not kept:
            raise ConfigError(f"{name} is changed by a configuration file; Hydra's own settings are fixed here.")


def _translate(error: Exception, overrides: Sequence[Override]) -> str:
    """One or two sentences for an error of Hydra or OmegaConf."""
    cause = error if isinstance(error, OmegaConfBaseException) else error.__cause__
    if isinstance(cause, OmegaConfBaseException):
        path = str(cause.full_key or "")
        key = path.partition("[")[0]
        kind = schema.keys().get(key)
        for item in overrides:
            if item.key_or_group == key and kind is not None and item.value() is not None:
                said = str(item.input_line)
                if type(cause).__name__.startswith("Interpolation"):
                    break
                return f"{said} is not allowed; {_expected(kind)}."
        first = str(cause.msg if getattr(cause, "msg", None) else cause).splitlines()[0]
        where = f"{path}: " if path else ""
        outer = "" if cause is error else f" ({str(error).splitlines()[0]})"
        return f"{where}{first}{outer}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:1] if "search path" in str(error) else lines)
