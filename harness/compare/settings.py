"""Thresholds, anchors and acknowledgements: ``conf/alarms.yaml``, read strictly.

The file is data: strict YAML, no key unknown, every value of its type and in its range. What the values mean
for a verdict is ``harness.compare.rule`` and ``harness.compare.judge``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import date
from pathlib import Path
from typing import Any

from harness import strict_yaml
from harness.compare.verdict import Kind
from harness.provenance import ROOT
from harness.rows import PASSES
from harness.strict_yaml import YamlError
from masks.spelling import allowed_names

DEFAULT = ROOT / "conf" / "alarms.yaml"


class SettingsError(ValueError):
    """A settings file that cannot be used: says the key, what was given and what is allowed."""


@dataclass(frozen=True)
class Thresholds:
    """When a drop is one. Shares of 1 unless said otherwise; ``conf/alarms.yaml`` has a line on each."""

    least_drop: float = 0.02
    noise_factor: float = 3.0
    probability: float = 0.01
    visible_drop: float = 0.03
    power: float = 0.9
    certain: float = 0.95
    clock_drop: float = 0.01
    anchor_hours: float = 12.0


_RANGES = {"noise_factor": (0.0, 100.0), "anchor_hours": (0.0, 24.0 * 365)}
"""All others lie between 0 and 1. Bounds do not belong to the range."""


@dataclass(frozen=True)
class Acknowledgement:
    """An alarm that is accepted: what it is about (None: anything), why, and the last day on which it counts."""

    reason: str
    until: date
    kernel: str | None = None
    mask: str | None = None
    seqlen: int | None = None
    pass_: str | None = None
    gpu: str | None = None
    verdict: Kind | None = None

    def covers(self, kind: Kind, row: Mapping[str, Any]) -> bool:
        """Whether it is about a verdict of this kind on the case of this row."""
        asked = {"kernel": self.kernel, "mask": self.mask, "seqlen": self.seqlen, "pass": self.pass_, "gpu": self.gpu}
        same = all(value is None or row[name] == value for name, value in asked.items())
        return same and self.verdict in (None, kind)

    @property
    def about(self) -> str:
        """Its selectors as one line."""
        said = {
            item.name.rstrip("_"): getattr(self, item.name) for item in fields(self) if item.name not in ("reason", "until")
        }
        return ", ".join(f"{name}={value}" for name, value in said.items() if value is not None)


@dataclass(frozen=True)
class Settings:
    """The whole file."""

    thresholds: Thresholds = Thresholds()
    anchors: Mapping[str, str] = field(default_factory=lambda: {"cuda": "sdpa_cudnn", "cpu": "dense"})
    acknowledged: tuple[Acknowledgement, ...] = ()


def load(path: Path = DEFAULT) -> Settings:
    """The settings of a file.

    Raises:
        SettingsError: no such file, not YAML, an unknown or doubled key, a wrong type, a value out of range.
    """
    try:
        raw = strict_yaml.load(path)
    except YamlError as error:
        raise SettingsError(str(error)) from error
    try:
        return parse({} if raw is None else raw)
    except SettingsError as error:
        raise SettingsError(f"{path.name}: {error}") from error


def parse(raw: object) -> Settings:
    """The settings of a loaded file.

    Raises:
        SettingsError: see :func:`load`.
    """
    table = _table(raw, "the file", ("thresholds", "anchors", "acknowledged"))
    said = _table(table.get("thresholds") or {}, "thresholds", [item.name for item in fields(Thresholds)])
    thresholds = Thresholds(**{name: _number(value, f"thresholds.{name}", *_RANGES.get(name, (0.0, 1.0)))
                               for name, value in said.items()})  # fmt: skip
    if thresholds.visible_drop <= thresholds.least_drop:
        raise SettingsError(
            f"thresholds.visible_drop is {thresholds.visible_drop:g}; allowed: above least_drop ({thresholds.least_drop:g})"
        )
    anchors = _table(table.get("anchors") or {}, "anchors", ("cuda", "cpu"))
    entries = table.get("acknowledged") or []
    if not isinstance(entries, list):
        raise SettingsError(f"acknowledged is {entries!r}; expected a list")
    default = Settings()
    return Settings(
        thresholds=thresholds,
        anchors={**default.anchors, **{name: _text(value, f"anchors.{name}") for name, value in anchors.items()}},
        acknowledged=tuple(_acknowledgement(entry, f"acknowledged[{number}]") for number, entry in enumerate(entries)),
    )


def _acknowledgement(raw: object, where: str) -> Acknowledgement:
    selectors = ("kernel", "mask", "seqlen", "pass", "gpu", "verdict")
    table = _table(raw, where, (*selectors, "reason", "until"))
    for name in ("reason", "until"):
        if name not in table:
            raise SettingsError(f"{where}: {name} is missing; every entry says why and until when")
    if not any(name in table for name in selectors):
        raise SettingsError(f"{where}: it is about everything; give at least one of {', '.join(selectors)}")
    until, seqlen = table["until"], table.get("seqlen")
    if type(until) is not date:
        raise SettingsError(f"{where}.until is {until!r}; expected a date such as 2027-03-01")
    if seqlen is not None and type(seqlen) is not int:
        raise SettingsError(f"{where}.seqlen is {seqlen!r}; expected tokens as a whole number")
    texts = {name: _text(table[name], f"{where}.{name}") for name in table if name not in ("until", "seqlen")}
    for name, allowed in (("pass", PASSES), ("verdict", tuple(Kind))):
        if name in texts and texts[name] not in allowed:
            raise SettingsError(f"{where}.{name} is {texts[name]!r}; {allowed_names(texts[name], allowed)}")
    verdict = texts.pop("verdict", None)
    return Acknowledgement(
        until=until,
        seqlen=seqlen,
        pass_=texts.pop("pass", None),
        verdict=None if verdict is None else Kind(verdict),
        **texts,
    )


def _table(raw: object, where: str, allowed: tuple[str, ...] | list[str]) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise SettingsError(f"{where} is {raw!r}; expected keys and values")
    for name in raw:
        if name not in allowed:
            raise SettingsError(f"{where}: unknown key {name!r}; {allowed_names(name, allowed)}")
    return raw


def _number(value: object, where: str, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SettingsError(f"{where} is {value!r}; expected a number")
    if not low < value < high:
        raise SettingsError(f"{where} is {value!r}; allowed: above {low:g} and below {high:g}")
    return float(value)


def _text(value: object, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise SettingsError(f"{where} is {value!r}; expected text")
    return value
