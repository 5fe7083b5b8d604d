"""docs/architecture.md names every module, and no module that is not there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "docs" / "architecture.md").read_text()
ROOMS = ("harness", "plots", "context_parallel", "fm3_kernel", "masks")


def test_every_module_of_every_room_is_named() -> None:
    missing = []
    for room in ROOMS:
        for path in sorted((ROOT / room).iterdir()):
            if path.name.startswith("__") and path.name != "__main__.py":
                continue
            name = f"`{path.name}/`" if path.is_dir() else f"`{path.name}`"
            if (path.is_dir() or path.suffix == ".py") and name not in TEXT:
                missing.append(f"{room}/{path.name}")
    assert not missing


def test_no_module_is_named_that_does_not_exist() -> None:
    known = {path.name for room in ROOMS for path in (ROOT / room).rglob("*.py")}
    named = set(re.findall(r"`(?:\w+/)*(\w+\.py)`", TEXT))
    assert named - known - {path.name for path in (ROOT / "tests").rglob("*.py")} == set()
