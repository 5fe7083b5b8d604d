"""Building kernels: found compilers, the cache, and the gate that refuses slow code. No GPU is needed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fm3_kernel import build as building
from fm3_kernel.build import BuildError, Built, Resources, build, check_resources, find_nvcc, instances, read_resources

LOG = """\
ptxas info    : Compiling entry function '_Zone' for 'sm_90a'
ptxas info    : Function properties for _Zone
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 168 registers, used 9 barriers, 1024 bytes smem
ptxas info    : Compiling entry function '_Ztwo' for 'sm_90a'
ptxas info    : Function properties for _Ztwo
    16 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 255 registers
"""

try:
    find_nvcc()
    NO_NVCC = ""
except BuildError as error:
    NO_NVCC = str(error)

needs_nvcc = pytest.mark.skipif(bool(NO_NVCC), reason=NO_NVCC or "nvcc is there")


def test_the_resource_table_is_read() -> None:
    assert list(read_resources(LOG)) == [Resources("_Zone", 168, 1024, 0, 0, 0), Resources("_Ztwo", 255, 0, 16, 8, 4)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("ptxas info : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized", "will be slow"),
        ("ptxas warning : setmaxnreg ignored; unable to determine register count at entry", "will be slow"),
        ("", r"_Ztwo \(8 bytes\)"),
    ],
)
def test_the_gate_refuses_slow_kernels(line: str, message: str) -> None:
    with pytest.raises(BuildError, match=message):
        check_resources("x", LOG + line, list(read_resources(LOG)))


def test_the_gate_refuses_to_judge_what_it_cannot_read() -> None:
    with pytest.raises(BuildError, match="reported no kernel"):
        check_resources("x", "", [])
    check_resources("x", "", [Resources("_Zone", 168, 1024, 0, 0, 0)])


def test_a_missing_compiler_says_where_it_was_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.path", [])
    with pytest.raises(BuildError, match=r"CUDA_HOME.*PATH.*pip install"):
        find_nvcc()


def test_cuda_home_comes_before_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("home", "path"):
        (tmp_path / name / "bin").mkdir(parents=True)
        program = tmp_path / name / "bin" / "nvcc"
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "path" / "bin"))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "home"))
    assert find_nvcc() == tmp_path / "home" / "bin" / "nvcc"
    monkeypatch.delenv("CUDA_HOME")
    assert find_nvcc() == tmp_path / "path" / "bin" / "nvcc"


def test_an_unknown_instance_is_named() -> None:
    with pytest.raises(BuildError, match=r"'forward_d12'; allowed: .*gemm_check.*did you mean 'forward_d128'"):
        build("forward_d12")


def test_the_command_builds_what_is_named_and_nothing_when_a_name_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def built(name: str) -> Built:
        asked.append(name)
        return Built(name, Path(f"{name}.so"), (Resources("_Zone", 168, 1024, 0, 0, 0),))

    monkeypatch.setattr(building, "build", built)
    assert building.main(["prepare", "forwad_d128"]) == 2
    told = capsys.readouterr()
    assert not asked and told.out == ""
    assert "'forwad_d128'; allowed: " in told.err and "did you mean 'forward_d128'" in told.err
    assert building.main(["prepare", "forward_d64", "prepare"]) == 0
    assert asked == ["prepare", "forward_d64"] and capsys.readouterr().out.startswith("prepare: prepare.so\n")
    asked.clear()
    assert building.main([]) == 0
    assert sorted(asked) == instances()


@needs_nvcc
@pytest.mark.parametrize("name", instances())
def test_every_instance_builds_and_passes_the_gate(name: str) -> None:
    built = build(name)
    assert built.library.stat().st_size > 0
    assert built.resources and all(entry.registers <= 255 and entry.stack == 0 for entry in built.resources)


@needs_nvcc
def test_the_cache_follows_the_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    csrc = tmp_path / "csrc"
    source = csrc / "sm80" / "instances" / "tiny.cu"
    source.parent.mkdir(parents=True)
    source.write_text('extern "C" __global__ void tiny(int* x) { *x = 1; }\n')
    monkeypatch.setattr(building, "CSRC", csrc)
    monkeypatch.setattr(building, "INSTANCES", (source.parent,))
    monkeypatch.setenv("FM3_CACHE", str(tmp_path / "cache"))
    first = build("tiny")
    stamp = os.stat(first.library).st_mtime_ns
    assert build("tiny") == first and os.stat(first.library).st_mtime_ns == stamp
    source.write_text(source.read_text().replace("= 1", "= 2"))
    assert build("tiny").library != first.library
    source.write_text("not C++\n")
    with pytest.raises(BuildError, match=r"nvcc failed on tiny\.cu"):
        build("tiny")
    assert not list((tmp_path / "cache").glob("*.tmp"))


def test_a_cache_that_cannot_be_written_and_a_compiler_that_does_not_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("FM3_CACHE", str(file))
    with pytest.raises(BuildError, match="cannot build into .*file.*FM3_CACHE names another folder"):
        build("prepare")
    broken = tmp_path / "bin" / "nvcc"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(BuildError, match="nvcc does not run"):
        build("prepare")


def test_an_instance_is_compiled_for_the_gpus_that_it_is_for() -> None:
    """The kernels for Ampere keep their PTX for GPUs to come; a Hopper kernel runs on nothing else; both need some."""
    for name in instances():
        for_hopper = "-gencode=arch=compute_90a,code=sm_90a" in building.flags(name)
        for_later = any("code=[sm_80,compute_80]" in flag for flag in building.flags(name))
        assert for_hopper == (not name.startswith("ampere_"))
        assert for_later == (name.startswith("ampere_") or name in building.EVERYWHERE)
        assert set(building.flags(name)) >= set(building.FLAGS[1:])
    assert set(building.EVERYWHERE) <= set(instances())


def test_an_instance_is_made_of_what_it_includes() -> None:
    """Headers of headers among them, and of nothing else: the forward pass does not change with the backward pass."""
    forward = {path.name for path in building.sources("forward_d128")}
    assert {"forward_d128.cu", "forward.cuh", "softmax.cuh", "wgmma.cuh", "tile_class.h"} <= forward
    assert not any(name.startswith("backward") for name in forward)
    assert {"backward.cuh", "fragments.cuh"} <= {path.name for path in building.sources("backward_d64")}


def test_the_hash_of_an_instance_follows_its_headers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nvcc = Path("nvcc")
    monkeypatch.setattr(building, "_nvcc_version", lambda nvcc: "1")
    folder = tmp_path / "sm80" / "instances"
    monkeypatch.setattr(building, "CSRC", tmp_path)
    monkeypatch.setattr(building, "INSTANCES", (folder,))
    for name, text in (
        ("a.cu", '#include "a.h"\n'),
        ("b.cu", ""),
        ("a.h", '#include <cuda.h>\n#include "sub/c.h"\n'),
        ("sub/c.h", "1"),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    before = [building.source_hash(name, nvcc) for name in "ab"]
    (folder / "sub/c.h").write_text("2")
    after = [building.source_hash(name, nvcc) for name in "ab"]
    assert before[0] != after[0]
    assert before[1] == after[1]
