"""From a run to its groups: what is in them, and what is refused before anything runs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from context_parallel.strategies import STRATEGIES
from harness.backends import BACKENDS, Availability
from harness.cases import Group, Team, Timing
from harness.config import ConfigError, Documents, RunConfig
from harness.expand import expand
from harness.inputs import make_mask
from harness.limits import too_much
from harness.machine import Machine, this_machine
from harness.provenance import environment
from masks.documents import paper_documents, sampled_documents
from masks.families import FAMILIES

CPU = Machine(gpu=None, gpu_memory=None, cpu="test", cores=2, memory=8 * 2**30, memory_available=6 * 2**30)
H200 = dataclasses.replace(CPU, gpu="NVIDIA H200", gpu_memory=139 * 2**30)
TWELVE = tuple(name for name in FAMILIES if name != "block_sparse")


def run_config(**changes: Any) -> RunConfig:
    plain: dict[str, Any] = {
        "families": ("causal",),
        "seqlens": (256,),
        "device": "cpu",
        "dtype": "float32",
        "head_dim": 64,
        "heads": 2,
        "kv_heads": 2,
        "batch": 1,
        "documents": Documents(variants=("a",)),
        "kernels": ("reference",),
    }
    return RunConfig(**(plain | changes))


def refused(machine: Machine = CPU, **changes: Any) -> str:
    with pytest.raises(ConfigError) as error:
        expand(run_config(**changes), machine)
    return str(error.value)


def test_one_question_is_one_group() -> None:
    timing = Timing(protocol="burst", heat_s=0.0, rounds=2)
    (group,) = expand(run_config(timing=timing, passes=("both",), deterministic=True, seed=7), CPU)
    assert (group.kernels, group.passes, group.device, group.timing) == (("reference",), ("both",), "cpu", timing)
    assert group.deterministic
    problem = group.problem
    assert (problem.seqlen, problem.batch, problem.heads, problem.kv_heads, problem.head_dim) == (256, 1, 2, 2, 64)
    assert (problem.seed, problem.dtype, problem.mask.family, problem.mask.documents) == (7, "float32", "causal", None)
    assert Group.from_json(group.to_json()) == group


def test_ranks_that_share_a_sequence_are_one_group_with_a_competitor_a_strategy() -> None:
    (every,) = expand(run_config(cp_degrees=(2,)), CPU)
    assert every.team == Team(2, "gloo")
    # PyTorch's own is not timed on a CPU unless it is asked for; then its row says why.
    assert every.kernels == tuple(f"reference/{name}" for name in STRATEGIES if name != "flex_cp")
    for strategy, kernel in (("ring", "reference"), ("flex_cp", "flex")):
        (one,) = expand(run_config(cp_degrees=(2,), strategies=(strategy,), exchange="auto"), CPU)
        assert one.kernels == (f"{kernel}/{strategy}",)
        assert Group.from_json(one.to_json()) == one
    two = dataclasses.replace(H200, gpus=2)
    (gpus,) = expand(run_config(cp_degrees=(2,), device="cuda", kernels=("fm3",), exchange="symmetric"), two)
    assert gpus.team == Team(2, "symmetric") and gpus.kernels[-1] == "flex/flex_cp" and "fm3/ring" in gpus.kernels
    assert "exchange=gloo does not exist with device=cuda; allowed: auto, nccl, symmetric" in refused(
        two, cp_degrees=(2,), device="cuda", kernels=("fm3",), exchange="gloo"
    )


def test_a_sweep_is_masks_times_lengths_times_lists_shortest_first() -> None:
    groups = expand(run_config(families=TWELVE, seqlens=(512, 128), documents=Documents(variants=("a", "c"))), CPU)
    with_documents = [name for name in TWELVE if FAMILIES[name].needs_documents]
    assert len(groups) == 2 * (len(TWELVE) + len(with_documents))
    assert [group.problem.seqlen for group in groups] == sorted(group.problem.seqlen for group in groups)
    assert len({group.case("reference", "forward").id for group in groups}) == len(groups)
    variants = {group.problem.mask.variant for group in groups if group.problem.mask.family == "document"}
    assert variants == {"a", "c"}
    assert all(
        group.problem.mask.variant is None for group in groups if not FAMILIES[group.problem.mask.family].needs_documents
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_the_worker_can_build_every_mask_that_was_planned(family: str) -> None:
    (group,) = expand(run_config(families=(family,), batch=2), CPU)
    mask = make_mask(group.problem, "cpu")
    assert mask.seqlen_q == mask.seqlen_k == 256
    assert (mask.batch, mask.heads) == ((2, 2) if FAMILIES[family].per_head else (1, 1))


def test_documents_are_resolved_from_each_source(tmp_path: Path) -> None:
    def triples(documents: Any) -> tuple[tuple[int, int, bool], ...]:
        return tuple((item.length, item.prefix, item.flag) for item in documents)

    (paper,) = expand(run_config(families=("document",), documents=Documents(variants=("d",))), CPU)
    assert paper.problem.mask.documents == triples(paper_documents(256, "d"))
    (sampled,) = expand(run_config(families=("document",), seed=5, documents=Documents("sampled", cut=True)), CPU)
    assert sampled.problem.mask.documents == triples(sampled_documents(256, 5, cut=True))
    assert sampled.problem.mask.variant == "sampled_cut"
    path = tmp_path / "my lengths.csv"
    path.write_text("n,length\n200,9\n100,9\n" + "1,9\n" * 2)
    (found,) = expand(run_config(families=("document",), documents=Documents("file", lengths=str(path), column="n")), CPU)
    documents = found.problem.mask.documents
    assert documents is not None
    assert [length for length, _, _ in documents] == [200, 56]
    assert found.problem.mask.variant == "my lengths.csv", "rows hold no paths of a machine"
    (cut,) = expand(
        run_config(families=("document",), documents=Documents("file", lengths=str(path), cut=True), seqlens=(16,)), CPU
    )
    assert [length for length, _, _ in cut.problem.mask.documents or ()] == [4, 4, 4, 4], "a quarter each"


def test_parameters_reach_the_families_that_know_them_and_defaults_are_recorded() -> None:
    families = ("causal", "sliding_window", "global_sliding_window", "block_sparse")
    groups = expand(run_config(families=families, params={"window": 32}), CPU)
    params = {group.problem.mask.family: group.problem.mask.params for group in groups}
    assert params["causal"] == {}
    assert params["sliding_window"] == {"window": 32}
    assert params["global_sliding_window"] == {"window": 32, "global_tokens": 16}
    assert params["block_sparse"] == {"keep_rate": 0.2}
    (explicit,) = expand(run_config(families=("block_sparse",), params={"keep_rate": 0.2}), CPU)
    assert explicit.case("reference", "forward").id == groups[-1].case("reference", "forward").id


def test_all_means_those_that_can_run_and_names_stay_as_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(BACKENDS["flex"]), "probe", lambda self, device: Availability(False, reason="broken"))
    (every,) = expand(run_config(kernels=None), CPU)
    assert "reference" in every.kernels
    assert "dense" in every.kernels
    assert not {"flex", "sdpa_cudnn", "flex_flash"} & set(every.kernels) or this_machine().gpu is not None
    (named,) = expand(run_config(kernels=("flex", "sdpa_cudnn")), CPU)
    assert named.kernels == ("flex", "sdpa_cudnn")


def test_a_plan_for_a_gpu_can_be_looked_at_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every competitor, whose GPU's memory and drivers nobody can ask here."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    there = {"device": "cuda", "hardware": "h200", "gpus": ("NVIDIA H200",), "dry_run": True, "kernels": None}
    (whole,) = expand(run_config(**there, seqlens=(1 << 20,), batch=64), CPU)
    assert whole.kernels == tuple(BACKENDS)
    (shared,) = expand(run_config(**there, cp_degrees=(2,), strategies=("ring",), exchange="auto"), CPU)
    assert shared.kernels == ("fm3/ring",)
    assert environment("cuda")["gpu"] == environment("cpu")["gpu"]


def test_batch_follows_the_length() -> None:
    found = run_config(
        device="cuda", hardware="h200", gpus=("NVIDIA H200",), batch=None, tokens=131072, seqlens=(4096, 32768, 262144)
    )
    groups = expand(found, H200)
    assert [(group.problem.batch, group.device) for group in groups] == [(32, "cuda"), (4, "cuda"), (1, "cuda")]


def test_the_gpu_must_be_there_and_be_the_one_meant() -> None:
    assert "sees none" in refused(CPU, device="cuda", hardware="h200")
    said = refused(H200, device="cuda", hardware="h100", gpus=("NVIDIA H100 80GB HBM3",))
    assert "NVIDIA H100 80GB HBM3" in said
    assert "this GPU is NVIDIA H200" in said
    assert expand(run_config(), H200)[0].device == "cpu", "a CPU run needs no GPU and minds none"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"families": ("document",), "seqlens": (63,)}, "at least 64"),
        ({"families": ("full", "causal", "document"), "seqlens": (4096, 10)}, "at least 64"),
        ({"families": ("random_eviction",), "seqlens": (1,)}, "at least 2"),
        ({"families": ("sliding_window",), "params": {"window": 0}}, "window"),
        ({"families": ("document",), "documents": Documents("file", lengths="no_such_file.csv")}, "no_such_file.csv"),
    ],
)
def test_what_a_family_cannot_be_built_from_is_refused_before_anything_runs(changes: dict[str, Any], said: str) -> None:
    assert said in refused(**changes)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("length\n10\n-3\n", "bad.csv:3: length is -3"),
        ("length\n0\n", "bad.csv:2: length is 0"),
        ("length\n1.5\n", "bad.csv:2: length is '1.5'"),
        ("length\n7\n", "seqlen is 256"),
        ("", "no lengths"),
    ],
)
def test_a_bad_file_of_lengths_is_told_with_its_line(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(content)
    message = refused(families=("document",), documents=Documents("file", lengths=str(path)))
    assert "bad.csv" in message
    assert said in message


def test_a_cpu_is_not_asked_for_more_memory_than_it_has() -> None:
    said = refused(seqlens=(32768,), heads=64, kv_heads=64, head_dim=128, batch=4, timing=Timing(timeout_s=1e9))
    assert "needs about 64.0 GiB" in said
    assert "6.0 GiB are available" in said
    unknown = dataclasses.replace(CPU, memory_available=None)
    assert expand(run_config(seqlens=(2048,), heads=64, kv_heads=64, batch=64, timing=Timing(timeout_s=1e9)), unknown)


def test_a_cpu_is_not_asked_for_hours_unless_the_timeout_says_so() -> None:
    long: dict[str, Any] = {"families": ("full",), "seqlens": (131072,)}
    said = refused(**long)
    assert "raise timing.timeout_s" in said
    assert expand(run_config(**long, timing=Timing(timeout_s=1e6)), CPU)
    # 4 S S D H of a forward at S = 131072 is 8.8 TFLOP: 440 s on two cores, so three samples are too much and one is not.
    one = Timing(min_samples=1)
    assert expand(run_config(**long, passes=("forward",), timing=one), CPU)
    assert "timing.timeout_s" in refused(**long, passes=("backward",), timing=one)
    sparse = expand(run_config(families=("sliding_window",), seqlens=(131072,), timing=one), CPU)
    assert sparse, "what the mask hides is not computed"


def test_the_limits_are_for_a_cpu_only() -> None:
    big: dict[str, Any] = {"families": ("full",), "seqlens": (131072,), "heads": 32, "kv_heads": 32, "head_dim": 128}
    (group,) = expand(run_config(**big, device="cuda", hardware="gpu"), H200)
    assert too_much(group, 1.0, CPU) is not None


def test_this_machine_tells_plausible_facts() -> None:
    machine = this_machine()
    assert machine.cores >= 1
    assert machine.cpu
    assert machine.memory is None or machine.memory_available is None or 0 < machine.memory_available <= machine.memory
    assert machine.device == ("cpu" if machine.gpu is None else "cuda")
