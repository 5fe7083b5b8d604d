"""The house rules about who may import whom, read from the source and not from words."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("harness", "plots", "context_parallel", "fm3_kernel", "masks")
# Every room may import itself and the rooms behind it. `harness.rows` is the one file that may be taken from above.
ALLOWED = {
    "harness": {"harness", "plots", "context_parallel", "fm3_kernel", "masks"},
    "plots": {"plots", "fm3_kernel", "masks", "harness.rows"},
    "context_parallel": {"context_parallel", "fm3_kernel", "masks"},
    "fm3_kernel": {"fm3_kernel", "masks"},
    "masks": {"masks"},
}
THIRD_PARTY = {
    "masks": {"torch"},
    "context_parallel": {"torch", "numpy"},
    "fm3_kernel": {"torch"},
    "plots": {"torch", "numpy", "pandas", "matplotlib"},
}
# A file that ties a room to one package more, which is optional and imported on use.
OPTIONAL = {"fm3_kernel/transformers.py": {"transformers"}}
HYDRA_FILES = {"harness/__main__.py"}


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def files(room: str) -> list[Path]:
    return sorted((ROOT / room).rglob("*.py"))


def stdlib(module: str) -> bool:
    import sys

    return module.split(".")[0] in sys.stdlib_module_names


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_import_only_what_lies_below(room: str) -> None:
    bad = []
    for path in files(room):
        for module in imports(path):
            top = module.split(".")[0]
            if (
                top in ROOMS
                and top not in ALLOWED[room]
                and not any(module == one or module.startswith(f"{one}.") for one in ALLOWED[room])
            ):
                bad.append(f"{path.relative_to(ROOT)} imports {module}")
    # `from harness.rows import X` is listed as harness.rows and harness.rows.X, and both are fine.
    assert not bad


@pytest.mark.parametrize("room", sorted(THIRD_PARTY))
def test_lower_rooms_keep_their_dependencies_few(room: str) -> None:
    bad = []
    for path in files(room):
        allowed = THIRD_PARTY[room] | OPTIONAL.get(path.relative_to(ROOT).as_posix(), set())
        for module in imports(path):
            top = module.split(".")[0]
            if not stdlib(module) and top not in ROOMS and top not in allowed:
                bad.append(f"{path.relative_to(ROOT)} imports {module}")
    assert not bad


def test_rows_need_the_standard_library_alone() -> None:
    for name in ("rows.py", "row_limits.py"):
        assert all(stdlib(module) or "harness.row_limits" in module for module in imports(ROOT / "harness" / name)), name


def test_only_the_command_line_and_the_configuration_know_hydra() -> None:
    for path in files("harness"):
        name = path.relative_to(ROOT).as_posix()
        if name in HYDRA_FILES or name.startswith("harness/config/"):
            continue
        assert not any(module.split(".")[0] in ("hydra", "omegaconf") for module in imports(path)), name


def test_csrc_holds_no_python_and_no_torch_headers() -> None:
    for path in (ROOT / "csrc").rglob("*"):
        assert path.suffix != ".py"
        if path.is_file():
            assert "#include <torch" not in path.read_text()


def test_results_stay_small() -> None:
    sizes = [path.stat().st_size for path in (ROOT / "results").rglob("*") if path.is_file() and "local" not in path.parts]
    assert sum(sizes) < 20 << 20
