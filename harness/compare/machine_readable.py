"""A comparison for programs: JSON, JUnit XML, and GitHub's annotations. Text of rows is escaped in each."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from harness.compare.lines import why
from harness.compare.verdict import MEANING, Comparison, Kind, Numbers, Verdict
from plots.style import plain

JSON_VERSION = 1

_FIELDS = ("case_id", "kernel", "mask", "mask_variant", "seqlen", "pass", "gpu", "power_limit", "protocol", "source", "git_sha")


def as_json(comparison: Comparison) -> str:
    """Every verdict with its figures. ``version`` changes when a field changes its meaning."""
    record = {
        "version": JSON_VERSION,
        "exit_code": comparison.exit_code,
        "candidate": comparison.candidate,
        "baseline": comparison.baseline,
        "counts": {str(kind): comparison.counts[kind] for kind in Kind if comparison.counts[kind]},
        "thresholds": asdict(comparison.thresholds),
        "notes": list(comparison.notes),
        "verdicts": [_verdict(verdict) for verdict in comparison.verdicts],
    }
    return json.dumps(record, indent=1, allow_nan=False) + "\n"


def _verdict(verdict: Verdict) -> dict[str, Any]:
    accepted = verdict.acknowledged
    return {
        "verdict": str(verdict.kind),
        "certain": verdict.certain,
        "name": verdict.case,
        "case": {name: verdict.row[name] for name in _FIELDS},
        "reason": verdict.reason,
        "acknowledged": None if accepted is None else {"reason": accepted.reason, "until": accepted.until.isoformat()},
        "numbers": None if verdict.numbers is None else _numbers(verdict.numbers),
        "command": verdict.command,
    }


def _numbers(numbers: Numbers) -> dict[str, Any]:
    return {name: _rounded(value) for name, value in asdict(numbers).items()}


def _rounded(value: Any) -> Any:
    """Six digits, in which two machines agree; null for what is not known."""
    if isinstance(value, float):
        return None if math.isnan(value) else float(f"{value:.6g}")
    return [_rounded(one) for one in value] if isinstance(value, tuple) else value


def junit(comparison: Comparison) -> str:
    """One suite a machine, one test a case: alarms fail, what could not be judged is skipped, acknowledged alarms pass."""
    root = ET.Element("testsuites", name="alarms")
    suites: dict[str, list[Verdict]] = {}
    for verdict in comparison.verdicts:
        suites.setdefault(verdict.setting, []).append(verdict)
    for setting, members in suites.items():
        failed, skipped = sum(v.alarm for v in members), sum(_skips(v) for v in members)
        counts = {"tests": str(len(members)), "failures": str(failed), "errors": "0", "skipped": str(skipped)}
        suite = ET.SubElement(root, "testsuite", {"name": _xml(setting), **counts})
        for verdict in members:
            _test(suite, verdict)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=False) + "\n"


def _test(suite: ET.Element, verdict: Verdict) -> None:
    where = f"{verdict.row['kernel']}.{verdict.row['pass']}"
    test = ET.SubElement(suite, "testcase", classname=_xml(where), name=_xml(verdict.case))
    text = _xml(_sentence(verdict))
    if verdict.alarm:
        ET.SubElement(test, "failure", type=str(verdict.kind), message=text)
    elif _skips(verdict):
        ET.SubElement(test, "skipped", message=text)
    else:
        ET.SubElement(test, "system-out").text = text


def _skips(verdict: Verdict) -> bool:
    return verdict.kind in (Kind.AMBIGUOUS, Kind.OTHER_MACHINE, Kind.ENVIRONMENT, Kind.NEW) and verdict.acknowledged is None


def _sentence(verdict: Verdict) -> str:
    change = f" {verdict.numbers.change} of throughput" if verdict.numbers is not None else ""
    reason = why(verdict)
    return f"{verdict.word}{change}{f': {reason}' if reason else ''}"


def _xml(text: str) -> str:
    return plain(text, 2000)


_LEVELS = {
    "error": (Kind.REGRESSION, Kind.LOST),
    "warning": (Kind.ENVIRONMENT, Kind.OTHER_MACHINE, Kind.AMBIGUOUS),
    "notice": (Kind.IMPROVED,),
}
_NAMED = 5
"""Cases that an annotation names; a CI page shows ten annotations at most, so every class has one."""


def github(comparison: Comparison) -> str:
    """GitHub's workflow commands: one a class, with the worst cases by name, and one for the notes."""
    lines = []
    for level, kinds in _LEVELS.items():
        for kind in kinds:
            members = [verdict for verdict in comparison.of(kind) if verdict.acknowledged is None]
            if members:
                lines.append(_command(level, f"{kind}: {_count(members)}", f"{MEANING[kind]}: {_few(members)}"))
    accepted = [verdict for verdict in comparison.verdicts if verdict.acknowledged is not None]
    if accepted:
        lines.append(_command("notice", f"acknowledged: {_count(accepted)}", _few(accepted)))
    if comparison.notes:
        lines.append(_command("notice", "about the rows", "; ".join(comparison.notes)))
    return "".join(f"{line}\n" for line in lines)


def _count(members: Sequence[Verdict]) -> str:
    return f"{len(members)} case" + ("s" if len(members) > 1 else "")


def _few(members: Sequence[Verdict]) -> str:
    named = [f"{v.case} {v.numbers.change}" if v.numbers is not None else v.case for v in members[:_NAMED]]
    return ", ".join(named) + (f" and {len(members) - _NAMED} more" if len(members) > _NAMED else "")


def _command(level: str, title: str, message: str) -> str:
    return f"::{level} title={_escaped(title, property_=True)}::{_escaped(message)}"


def _escaped(text: str, property_: bool = False) -> str:
    """GitHub's escapes: what could end the command, and in a property what could end that."""
    for mark, code in (("%", "%25"), ("\r", "%0D"), ("\n", "%0A"), *(((":", "%3A"), (",", "%2C")) if property_ else ())):
        text = text.replace(mark, code)
    return text
