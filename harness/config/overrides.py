"""Overrides as typed, checked one by one before anything is composed: grammar, key, option, and whether it has an effect.

Also the jobs of a ``--multirun``, in the order in which Hydra runs them. Types are left to OmegaConf, apart from the
conversions it makes in silence.
"""

from __future__ import annotations

import itertools
import types
import typing
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, QuotedString
from hydra.errors import HydraException

from harness.config import schema
from harness.config.errors import ConfigError, refusal, require_once
from harness.config.schema import GROUPS
from masks.spelling import allowed_names


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
        ConfigError: as :func:`parse`, and for a sweep over something that all jobs share or over one value twice.
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
            values = _globbed(item) if _is_glob(item) else list(item.sweep_string_iterator())
            require_once(str(key), values)
            choices.append([f"{key}={value}" for value in values])
    return [list(job) for job in itertools.product(*choices)]


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
            raise ConfigError(f"{key}=null is not allowed; {expected(kind)}.")
        return
    if bare is bool and not isinstance(value, bool):
        raise ConfigError(f"{key}={_text(value)} is not allowed; it is true or false.")
    if bare is str and isinstance(value, int | float):
        raw = text.partition("=")[2]
        if _text(value) not in raw.split(","):
            raise ConfigError(f"{text!r} would be read as {_text(value)}; to mean the text write '{key}=\"{raw}\"'.")
    if typing.get_origin(bare) is list and not isinstance(value, list):
        raise ConfigError(f"{key}={_text(value)} is not allowed; it is a list: {key}=[{_text(value)}].")
    if isinstance(bare, type) and issubclass(bare, Enum):
        _check_member(key, bare, value)
    if typing.get_origin(bare) is list:
        (inner,) = typing.get_args(bare)
        for entry in value:
            if isinstance(entry, list | dict):
                raise ConfigError(f"{text!r}: a list in a list; {expected(kind)}")
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


def expected(kind: Any) -> str:
    """What a key of this type takes, in words."""
    bare = _bare(kind)
    if isinstance(bare, type) and issubclass(bare, Enum):
        return "allowed: " + ", ".join(bare.__members__)
    if typing.get_origin(bare) is list:
        (inner,) = typing.get_args(bare)
        return f"it is a list [a,b]; in it, {expected(inner)}"
    names = {int: "it is an integer", float: "it is a number", bool: "it is true or false", str: "it is a text"}
    return names[bare]
