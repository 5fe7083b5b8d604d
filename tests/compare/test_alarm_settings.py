"""The settings file is read strictly: what is wrong is named, with what is allowed."""

from __future__ import annotations

from dataclasses import fields
from datetime import date
from pathlib import Path

import pytest

from harness.compare.settings import DEFAULT, Acknowledgement, Settings, SettingsError, Thresholds, load, parse
from harness.compare.verdict import Kind


def read(tmp_path: Path, text: str) -> Settings:
    path = tmp_path / "alarms.yaml"
    path.write_text(text)
    return load(path)


def test_the_committed_file_says_every_threshold_and_what_the_code_says() -> None:
    assert load() == Settings()
    for item in fields(Thresholds):
        assert f"  {item.name}: " in DEFAULT.read_text()


def test_an_empty_file_is_the_defaults(tmp_path: Path) -> None:
    assert read(tmp_path, "") == Settings()


def test_values_are_taken_over(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        "thresholds: {least_drop: 0.01}\nanchors: {cpu: reference}\nacknowledged:\n"
        "  - {kernel: fm3, pass: forward, seqlen: 8192, verdict: LOST, reason: known, until: 2027-03-01}\n",
    )
    assert found.thresholds.least_drop == 0.01
    assert found.anchors == {"cuda": "sdpa_cudnn", "cpu": "reference"}
    known = Acknowledgement("known", date(2027, 3, 1), kernel="fm3", pass_="forward", seqlen=8192, verdict=Kind.LOST)
    assert found.acknowledged == (known,)
    assert known.about == "kernel=fm3, seqlen=8192, pass=forward, verdict=LOST"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("treshold: {}", r"unknown key 'treshold'; allowed: thresholds, .*did you mean 'thresholds'"),
        ("thresholds: {least_dorp: 0.1}", "did you mean 'least_drop'"),
        ("thresholds: {least_drop: high}", "thresholds.least_drop is 'high'; expected a number"),
        ("thresholds: {least_drop: true}", "expected a number"),
        ("thresholds: {least_drop: 2}", "allowed: above 0 and below 1"),
        ("thresholds: {probability: .nan}", "allowed: above 0 and below 1"),
        ("thresholds: {visible_drop: 0.01}", "allowed: above least_drop"),
        ("thresholds: [1]", "expected keys and values"),
        ("anchors: {cuda: 3}", "anchors.cuda is 3; expected text"),
        ("acknowledged: {a: b}", "expected a list"),
        ("acknowledged: [{kernel: fm3, until: 2027-01-01}]", r"acknowledged\[0\]: reason is missing"),
        ("acknowledged: [{reason: x, until: 2027-01-01}]", "about everything"),
        ("acknowledged: [{kernel: fm3, reason: x, until: soon}]", "until is 'soon'; expected a date"),
        ("acknowledged: [{kernel: fm3, reason: '', until: 2027-01-01}]", "expected text"),
        ("acknowledged: [{seqlen: 8K, reason: x, until: 2027-01-01}]", "expected tokens as a whole number"),
        ("acknowledged: [{pass: foward, reason: x, until: 2027-01-01}]", "did you mean 'forward'"),
        ("acknowledged: [{verdict: SLOW, reason: x, until: 2027-01-01}]", "allowed: REGRESSION, LOST"),
        ("thresholds: {least_drop: 0.1, least_drop: 0.2}", "line 1: least_drop is there twice"),
        ("thresholds: !!python/object/apply:os.getcwd []", "not YAML"),
        ("thresholds: {", "not YAML"),
        ("acknowledged: [{reason: x, until: 2027-02-30}]", "not YAML that can be read"),
        ("[" * 5000, "not YAML that can be read"),
        ("- 1", "the file is .1.; expected keys and values"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=rf"alarms.yaml: .*{message}"):
        read(tmp_path, text)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"none.yaml: cannot be read"):
        load(tmp_path / "none.yaml")


def test_an_acknowledgement_covers_what_it_names_and_nothing_else() -> None:
    row = {"kernel": "fm3", "mask": "document", "seqlen": 8192, "pass": "forward", "gpu": "G"}
    entry = parse(
        {"acknowledged": [{"mask": "document", "verdict": "LOST", "reason": "x", "until": date(2027, 1, 1)}]}
    ).acknowledged[0]
    assert entry.covers(Kind.LOST, row)
    assert not entry.covers(Kind.REGRESSION, row)
    assert not entry.covers(Kind.LOST, row | {"mask": "causal"})
