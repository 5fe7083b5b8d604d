"""The configuration: every file composes, every wrong word is refused in words, and the run that comes out is checked."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from context_parallel.exchanges import EXCHANGES
from context_parallel.strategies import STRATEGIES
from harness import cases
from harness.backends import BACKENDS
from harness.config import ConfigError, RunConfig
from harness.config.compose import load
from harness.config.overrides import jobs
from harness.config.resolve import resolve
from harness.config.schema import CONF, GROUPS, Config, Exchange, Pass, Policy, Protocol, Strategy, Variant, keys, options
from harness.lengths import Policy as LengthsPolicy
from harness.rows import PASSES, PROTOCOLS
from masks.families import FAMILIES

TWELVE = [name for name in FAMILIES if name != "block_sparse"]
H200, H100 = "NVIDIA H200", "NVIDIA H100 80GB HBM3"


def config(*overrides: str, gpu: str | None = None) -> RunConfig:
    return resolve(load(list(overrides)), gpu)


def refused(*overrides: str, gpu: str | None = None) -> str:
    with pytest.raises(ConfigError) as error:
        config(*overrides, gpu=gpu)
    return str(error.value)


# -- the files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("group", "name"), [(group, name) for group in GROUPS for name in options(group)])
def test_every_file_of_every_group_composes_and_resolves(group: str, name: str) -> None:
    found = config(f"{group}={name}", gpu=H100 if name == "h100" else H200)
    assert found.families
    assert found.seqlens
    if group in ("hardware", "timing", "sweep"):
        raw = OmegaConf.load(CONF / group / f"{name}.yaml")
        assert raw.name == name, "a file carries its own name"
        # resolve() reads these files on their own, where a defaults list would be lost.
        assert "defaults" not in raw


def test_there_is_a_file_for_every_mask_and_every_kernel() -> None:
    assert set(options("mask")) == set(FAMILIES)
    assert set(options("kernel")) == {"all", *BACKENDS}
    assert [config(f"mask={name}").families for name in FAMILIES] == [(name,) for name in FAMILIES]
    assert [config(f"kernel={name}").kernels for name in BACKENDS] == [(name,) for name in BACKENDS]
    assert config().kernels is None


def test_config_yaml_shows_every_top_level_key_with_the_default_of_the_schema() -> None:
    shown = OmegaConf.load(CONF / "config.yaml")
    scalars = [item for item in dataclasses.fields(Config) if item.name not in GROUPS]
    assert {item.name for item in scalars} == set(shown) - {"defaults", "hydra"}
    filled, bare = load([]), Config()
    assert [getattr(filled, item.name) for item in scalars] == [getattr(bare, item.name) for item in scalars]


def test_no_file_instantiates_anything_or_makes_folders_of_its_own() -> None:
    for path in CONF.rglob("*.yaml"):
        assert "_target_" not in path.read_text()
    hydra = OmegaConf.load(CONF / "config.yaml").hydra
    assert OmegaConf.to_container(hydra, resolve=False)["run"] == {"dir": "${results_dir}"}  # type: ignore[index, call-overload]
    assert hydra.output_subdir is None
    assert hydra.job.chdir is False


def test_the_closed_sets_are_those_of_the_code_that_uses_them() -> None:
    assert tuple(Pass.__members__) == PASSES
    assert tuple(Protocol.__members__) == PROTOCOLS
    assert set(Policy.__members__) == {item.value for item in LengthsPolicy}
    settable = {key.partition(".")[2] for key in keys() if key.startswith("timing.")}
    assert settable == {"name"} | {item.name for item in dataclasses.fields(cases.Timing)}
    assert len(Variant) == 5
    assert set(Exchange.__members__) == set(EXCHANGES) and set(Strategy.__members__) == set(STRATEGIES)


def test_the_big_sweeps_have_the_twelve_masks() -> None:
    papers = config("sweep=single_gpu")
    assert (list(papers.families), papers.seqlens) == (TWELVE, (4096, 8192, 32768, 131072))
    here = config("sweep=reproduce", "device=cpu")
    assert (list(here.families), here.seqlens) == (TWELVE, (1024, 4096)), "the hardware's lengths"
    assert config("sweep=reproduce", gpu=H200).seqlens == (4096, 8192)


# -- defaults -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("overrides", [(), ("device=cpu",), ("hardware=cpu",), ("device=cpu", "hardware=cpu")])
def test_cpu_defaults(overrides: tuple[str, ...]) -> None:
    found = config(*overrides, gpu=None if not overrides else H200)
    assert (found.device, found.hardware, found.dtype, found.head_dim) == ("cpu", "cpu", "float32", 64)
    assert (found.heads, found.kv_heads, found.batch_at(4096), found.documents.variants) == (2, 2, 1, ("a",))
    assert (found.timing.protocol, found.timing.heat_s) == ("burst", 0.0)
    assert found.peak_tflops == {}


@pytest.mark.parametrize(
    ("gpu", "hardware"), [(H200, "h200"), (H100, "h100"), ("NVIDIA GH200 480GB", "gpu"), ("NVIDIA H200 NVL", "gpu")]
)
def test_gpu_defaults_are_the_papers_shape(gpu: str, hardware: str) -> None:
    found = config(gpu=gpu)
    assert (found.device, found.hardware, found.dtype, found.head_dim) == ("cuda", hardware, "bfloat16", 128)
    assert (found.heads, found.kv_heads, found.documents.variants) == (32, 32, ("c",))
    assert [found.batch_at(seqlen) for seqlen in (4096, 32768, 131072, 262144)] == [32, 4, 1, 1]
    # Ranks that share a sequence share one.
    assert (found.batch_at(4096, 2), config("batch=3", gpu=gpu).batch_at(4096, 2)) == (1, 3)
    assert (found.timing.protocol, found.timing.heat_s, found.timing.l2) == ("sustained", 3.0, "cold")
    assert found.peak_tflops.get("bfloat16") == (None if hardware == "gpu" else 989)


def test_what_is_typed_wins_over_hardware_and_sweep() -> None:
    found = config("head_dim=64", "batch=3", "kv_heads=8", "dtype=fp16", gpu=H200)
    assert (found.heads, found.kv_heads, found.batch_at(8192), found.dtype) == (64, 8, 3, "float16")
    narrowed = config("sweep=single_gpu", "mask=document", "seqlen=512", "mask.variant=b", "timing.rounds=7")
    assert (narrowed.families, narrowed.seqlens, narrowed.documents.variants) == (("document",), (512,), ("b",))
    assert narrowed.timing.rounds == 7
    assert narrowed.timing.protocol == "burst"


def test_auto_timing_is_the_sweeps_then_the_hardwares() -> None:
    quick = config("timing=quick").timing
    assert config("sweep=smoke", gpu=H200).timing == quick != config(gpu=H200).timing
    assert config("sweep=smoke", "timing=sustained", gpu=H200).timing == config(gpu=H200).timing


def test_the_papers_experiment() -> None:
    found = config("experiment=paper_single_gpu", gpu=H200)
    assert list(found.families) == TWELVE
    assert (found.seqlens, found.device, found.timing.protocol) == ((4096, 8192, 32768, 131072), "cuda", "sustained")
    assert config("experiment=paper_single_gpu", "device=cpu", gpu=H200).device == "cpu", "the command line wins"


def test_a_file_of_lengths_implies_the_source() -> None:
    found = config("mask=document", "mask.lengths=my.csv", "mask.column=n", "mask.policy=shuffle", "mask.cut=true").documents
    assert (found.source, found.lengths, found.column, found.policy, found.cut) == ("file", "my.csv", "n", "shuffle", True)
    assert found.variants == ()
    assert config("mask=document", "mask.documents=sampled", "mask.cut=true").documents.cut


def test_the_hash_is_of_the_question_and_not_of_where_it_is_kept() -> None:
    base = config()
    assert config("results_dir=elsewhere", "dry_run=true").hash() == base.hash()
    assert config("device=cpu").hash() == base.hash(), "the same question in other words"
    assert len({base.hash(), config("seed=1").hash(), config("seqlen=512").hash(), config("mask=full").hash()}) == 4


# -- refusals -----------------------------------------------------------------------------------------------------------

WORDS = [
    (["mask=docment"], "mask=docment is not known", "did you mean 'document'"),
    (["kernel=refrence"], "kernel=refrence", "did you mean 'reference'"),
    (["hardware=h300"], "hardware=h300", "did you mean 'h"),
    (["timing=slow"], "timing=slow", "burst, quick, sustained"),
    (["sweep=smok"], "sweep=smok", "did you mean 'smoke'"),
    (["experiment=paper"], "experiment=paper", "paper_single_gpu"),
    (["sedlen=4096"], "no key sedlen", "did you mean 'seqlen'"),
    (["mask.windw=3"], "no key mask.windw", "did you mean 'mask.window'"),
    (["+mask.windw=3"], "no key mask.windw", "did you mean 'mask.window'"),
    (["+seqlen=3"], "+seqlen=3", "write seqlen=value"),
    (["++seqlen=3"], "++seqlen=3", "write seqlen=value"),
    (["~mask"], "~mask", "neither added nor taken away"),
    (["mask@x=document"], "@x", "write mask=value"),
    (["mask"], "'mask' is not an override", "key=value"),
    (["mask=[document]"], "mask=[document]", "chosen by its name"),
    (["mask={family:x}"], "mask={family:x}", "chosen by its name"),
    (["mask=null"], "mask=null", "chosen by its name"),
    (["mask="], "mask= is not known", "causal_document"),
    (["seqlen=4096", "seqlen=8192"], "seqlen is given twice", "ignored"),
    (["seqlen=abc"], "seqlen=abc", "an integer"),
    (["seqlen=8192.5"], "seqlen=8192.5", "an integer"),
    (["seqlen=8e3"], "seqlen=8e3", "an integer"),
    (["seqlen=true"], "seqlen=true", "an integer"),
    (["seqlen=1,2"], "gives several values", "--multirun"),
    (["mask=causal,document"], "gives several values", "--multirun"),
    (["passes=forward,backward"], "gives several values", "passes=[forward,backward]"),
    (["passes=forward"], "passes=forward", "passes=[forward]"),
    (["passes=[forwards]"], "passes=forwards", "did you mean 'forward'"),
    (["dtype=bf17"], "dtype=bf17", "did you mean 'bf16'"),
    (["mask.variant=z"], "mask.variant=z", "a, b, c, d, e"),
    (["mask.documents=paprs"], "mask.documents=paprs", "did you mean 'paper'"),
    (["mask.policy=shufle"], "mask.policy=shufle", "did you mean 'shuffle'"),
    (["device=gpu"], "device=gpu", "auto, cuda, cpu"),
    (["source=simulate"], "source=simulate", "did you mean 'simulated'"),
    (["mask.cut=2"], "mask.cut=2", "true or false"),
    (["deterministic=yes"], "deterministic=yes", "true or false"),
    (["mask.keep_rate=x"], "mask.keep_rate=x", "a number"),
    (["mask.window={a:1}"], "mask.window={a:1}", "an integer"),
    (["results_dir=null"], "results_dir=null", "a text"),
    (["kernel.names=[a,[b]]"], "a list in a list", "a text"),
    (["kernel.names=[reference,refrence]"], "kernel=refrence", "did you mean 'reference'"),
    (["mask.family=docment"], "mask=docment", "did you mean 'document'"),
    (["sweep.masks=[docment]"], "mask=docment", "did you mean 'document'"),
    (["hardware.name=h100"], "hardware.name", "hardware=NAME"),
    (["hydra.run.dir=x"], "hydra.run.dir=x", "results_dir"),
    (["hydra/launcher=basic"], "hydra/launcher=basic", "one after another"),
    (["mask.lengths=${nothing}"], "mask.lengths", "'nothing' not found"),
    (["results_dir=${oc.env:NO_SUCH_VARIABLE_HERE}"], "results_dir", "NO_SUCH_VARIABLE_HERE"),
    (["mask.lengths=1e3"], "read as 1000.0", 'mask.lengths="1e3"'),
]


@pytest.mark.parametrize(("overrides", "given_", "allowed"), WORDS, ids=[" ".join(words[0]) for words in WORDS])
def test_wrong_words_are_refused_with_what_is_allowed(overrides: list[str], given_: str, allowed: str) -> None:
    said = refused(*overrides)
    assert given_ in said
    assert allowed in said
    assert "\n" not in said
    assert "hydra.cc" not in said


RULES = [
    (["device=cpu", "hardware=h200"], "device=cpu and hardware=h200 contradict"),
    (["device=cuda", "hardware=cpu"], "device=cuda and hardware=cpu contradict"),
    (["mask=causal", "mask.window=3"], "mask.window=3 does not apply to mask=causal"),
    (["mask=causal", "mask.window=3"], "sliding_window, global_sliding_window"),
    (["mask=sliding_window", "mask.keep_rate=0.5"], "does not apply to mask=sliding_window"),
    (["mask=causal", "mask.variant=b"], "mask.variant=b does not apply to mask=causal"),
    (["mask=full", "mask.lengths=my.csv"], "mask.lengths=my.csv does not apply"),
    (["mask=full", "mask.documents=paper"], "mask.documents=paper does not apply"),
    (["mask=document", "mask.documents=paper", "mask.lengths=my.csv"], "belongs to mask.documents=file"),
    (["mask=document", "mask.documents=file"], "mask.lengths=my.csv"),
    (["mask=document", "mask.lengths="], "mask.lengths=my.csv"),
    (["mask=document", "mask.cut=true"], "mask.documents=sampled"),
    (["mask=document", "mask.lengths=my.csv", "mask.variant=a"], "belongs to mask.documents=paper"),
    (["mask=document", "mask.column=n"], "belongs to mask.documents=file"),
    (["mask=document", "mask.policy=shuffle"], "belongs to mask.documents=file"),
    (["heads=6", "kv_heads=4"], "allowed: 1, 2, 3, 6"),
    (["seqlen=0"], "seqlen=0"),
    (["seqlen=-4"], "seqlen=-4"),
    (["seqlen=2147483648"], "2147483647"),
    (["head_dim=0"], "head_dim=0"),
    (["head_dim=257"], "from 1 to 256"),
    (["heads=0"], "heads=0"),
    (["kv_heads=0"], "kv_heads=0"),
    (["batch=0"], "batch=0"),
    (["seed=-1"], "seed=-1"),
    (["cp_degree=0"], "cp_degree=0"),
    (["source=simulated"], "source=simulated needs ranks that share a sequence"),
    (["source=simulated", "cp_degree=4", "device=cpu"], "source=simulated and device=cpu contradict"),
    (["cp_degree=4", "hardware=h100"], "hardware=h100 has no cluster to simulate; allowed: h100_8, h200_8, h200_node"),
    (["cp_degree=4", "hardware.tokens_a_rank=0"], "tokens_a_rank=0"),
    (["sweep=cp_scaling", "sweep.cp_degrees=[4,4]"], "cp_degrees names 4 more than once"),
    (["strategy=ring"], "strategy=ring means nothing with cp_degree=1"),
    (["cp_degree=2", "sweep.strategies=[]"], "sweep.strategies"),
    (["sweep.strategies=[fm3,ring]"], "strategy=fm3,ring means nothing with cp_degree=1"),
    (["cp_degree=2", "sweep.strategies=[rong]"], "rong"),
    (["exchange=nccl"], "exchange=nccl means nothing with cp_degree=1"),
    (["passes=[]"], "passes is an empty list"),
    (["passes=[forward,forward]"], "passes names forward more than once"),
    (["kernel.names=[]"], "kernel.names is an empty list"),
    (["kernel.names=[dense,dense]"], "kernel.names names dense more than once"),
    (["mask=sliding_window", "mask.window=-1"], "mask.window=-1"),
    (["mask=block_sparse", "mask.keep_rate=1.5"], "mask.keep_rate=1.5"),
    (["mask=block_sparse", "mask.keep_rate=nan"], "mask.keep_rate=nan"),
    (["timing.rounds=0"], "timing.rounds=0"),
    (["timing.min_samples=9", "timing.max_samples=8"], "timing.max_samples=8"),
    (["timing.target_s=0"], "timing.target_s=0"),
    (["timing.target_s=inf"], "timing.target_s=inf"),
    (["timing.heat_s=-1"], "timing.heat_s=-1"),
    (["timing.timeout_s=0"], "timing.timeout_s=0"),
    (["timing.protocol=sustained"], "timing.heat_s=0"),
    (["timing.heat_s=2"], "timing.heat_s=2"),
    (["hardware.peak_tflops.float32=0"], "hardware.peak_tflops.float32=0"),
    (["results_dir="], "results_dir is empty"),
    (["sweep.timing=slw"], "timing=slw"),
]


@pytest.mark.parametrize(("overrides", "said"), RULES, ids=[f"{' '.join(rule[0])} {i}" for i, rule in enumerate(RULES)])
def test_rules_between_fields_and_ranges(overrides: list[str], said: str) -> None:
    assert said in refused(*overrides)


def test_a_parameter_in_a_sweep_applies_to_the_masks_that_know_it() -> None:
    assert config("sweep=single_gpu", "mask.window=64", "mask.variant=e").params == {"window": 64}
    assert "does not apply" in refused("sweep=single_gpu", "mask.keep_rate=0.5")


def test_run_config_checks_itself_without_hydra() -> None:
    good: dict[str, Any] = {"families": ("causal",), "seqlens": (128,), "device": "cpu", "dtype": "float32", "head_dim": 64}
    good |= {"heads": 2, "kv_heads": 1}
    assert RunConfig(**good).batch_at(128) == 1
    for change in ({"dtype": "float8"}, {"device": "tpu"}, {"passes": ("sideways",)}, {"heads": True}, {"seqlens": ()}):
        with pytest.raises(ConfigError):
            RunConfig(**(good | change))
    with pytest.raises(dataclasses.FrozenInstanceError):
        RunConfig(**good).seed = 3  # type: ignore[misc]


def test_composing_with_context_parallelism_works() -> None:
    found = config("cp_degree=16", "strategy=ring", "exchange=nccl")
    assert (found.cp_degrees, found.strategies, found.exchange) == ((16,), ("ring",), "nccl")
    # A sweep may list some; what is typed singly wins, and one rank alone has none.
    some = "sweep.strategies=[fm3,magi]"
    assert config("cp_degree=4", some).strategies == ("fm3", "magi")
    assert config("cp_degree=4", some, "strategy=ring").strategies == ("ring",)
    assert config("cp_degree=4").strategies is None


def test_ranks_without_gpus_are_simulated_unless_something_else_is_asked_for() -> None:
    assert config("cp_degree=16").cluster == "h200_8"
    assert config("cp_degree=16", gpu=H100).cluster == "h100_8"
    assert config("cp_degree=16", "hardware=h100_8", gpu=H200).cluster == "h100_8"
    assert config("cp_degree=16", "source=simulated", "hardware=h200_node").cluster == "h200_node"
    assert config("cp_degree=16", "hardware.cluster=mine.yaml").cluster == "mine.yaml"
    assert config("cp_degree=16", "source=measured", gpu=H200).cluster is None
    assert config("cp_degree=16", "device=cpu").cluster is None
    assert config("cp_degree=16", "hardware=cpu").cluster is None
    assert config().cluster is None
    assert resolve(load(["cp_degree=2"]), H200, 2).cluster is None
    assert resolve(load(["cp_degree=4"]), H200, 2).cluster == "h200_8"
    assert resolve(load(["cp_degree=2", "source=simulated"]), H200, 2).cluster == "h200_8"


def test_a_simulated_sequence_grows_with_the_ranks_unless_a_length_is_said() -> None:
    assert config("cp_degree=16").points() == [(131072, 16)]
    assert config("cp_degree=16", "seqlen=4096").points() == [(4096, 16)]
    assert config("cp_degree=16", "sweep=smoke").points() == [(512, 16)]
    assert config("cp_degree=4", "device=cpu").points() == [(4096, 4)]
    scaling = config("sweep=cp_scaling")
    assert scaling.points() == [(32768, 4), (65536, 8), (131072, 16), (262144, 32)]
    assert (scaling.cluster, scaling.batch_at(32768), len(scaling.families)) == ("h200_8", 1, 12)
    assert config("sweep=cp_scaling", "cp_degree=8").points() == [(65536, 8)]
    assert config("sweep=cp_scaling", "seqlen=4096").points() == [(4096, n) for n in (4, 8, 16, 32)]


def test_a_file_of_ours_that_turns_hydras_settings_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    from harness.config import compose

    shutil.copytree(CONF, tmp_path / "conf")
    experiment = tmp_path / "conf" / "experiment" / "paper_single_gpu.yaml"
    experiment.write_text("# @package _global_\nhydra:\n  sweeper:\n    params:\n      seqlen: 1,2\n")
    monkeypatch.setattr(compose, "CONF", tmp_path / "conf")
    assert "hydra.sweeper" in refused("experiment=paper_single_gpu")
    experiment.write_text("# @package _global_\nsedlen: 4\n")
    assert "sedlen" in refused("experiment=paper_single_gpu")
    experiment.write_text("# @package _global_\nseqlen: [broken\n")
    assert "paper_single_gpu.yaml" in refused("experiment=paper_single_gpu")


# -- quoting ------------------------------------------------------------------------------------------------------------

NAMES = ["a=b.csv", "a|b.csv", "a%b.csv", "a*b.csv", "a#b.csv", "a@b.csv", "a[1].csv", "längen_文.csv", "a,b.csv", "a b.csv"]
NAMES += ["a:b.csv", "it's.csv", '"quoted".csv', "back\\slash.csv", "{a}.csv", "(a).csv", "~a.csv", "+a.csv", "a$b.csv", "null"]
NAMES += ["true", "007", "1e3", "a\\\\", " lead.csv", "x,y=[1,{2}]#%*|@é.csv", "a?b&c;d<e>!.csv"]


def quoted(name: str) -> str:
    """As the error message tells people to write it, after the shell took its quotes."""
    escaped = name.replace('"', '\\"')
    end = len(escaped) - len(escaped.rstrip("\\"))
    return f'"{escaped}{end * chr(92)}"'


@pytest.mark.parametrize("name", NAMES)
def test_quoted_names_come_through_one_job_and_a_sweep(name: str) -> None:
    assert load(["mask=document", f"mask.lengths={quoted(name)}"]).mask.lengths == name
    several = jobs(["mask=document,causal_document", f"mask.lengths={quoted(name)}"], multirun=True)
    assert [load(job).mask.lengths for job in several[1:]] == [name]
    swept = jobs(["mask=document", f'mask.lengths={quoted(name)},"plain.csv"'], multirun=True)
    assert len(swept) == 2
    assert load(swept[0]).mask.lengths == name


@settings(max_examples=25, deadline=None)
@given(st.text(st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters="$\\"), min_size=1, max_size=12))
@example("=,|%*#@[]")
def test_any_name_survives_quoting(name: str) -> None:
    assert jobs([f"mask.lengths={quoted(name)}"], multirun=True) == [[f"mask.lengths={quoted(name)}"]]
    assert load([f"mask.lengths={quoted(name)}"]).mask.lengths == name


@pytest.mark.parametrize("name", ["a|b.csv", "a%b.csv", "a*b.csv", "a@b.csv", "a b.csv", "a/b-c_d.csv", "a:b.csv", "C:/a.csv"])
def test_names_that_need_no_quotes(name: str) -> None:
    assert load([f"mask.lengths={name}"]).mask.lengths == name


@pytest.mark.parametrize("name", ["a=b.csv", "a#b.csv", "a[1].csv", "längen.csv", "a'b.csv"])
def test_the_hint_for_an_unquoted_name_is_right(name: str) -> None:
    said = refused("mask=document", f"mask.lengths={name}")
    hint = said[said.index("shell: '") + len("shell: '") : -1]
    assert load([hint]).mask.lengths == name


def test_lists_and_sweeps_are_told_apart() -> None:
    assert jobs(["passes=[forward,backward]"], multirun=True) == [["passes=[forward,backward]"]]
    both = jobs(["passes=[forward],[backward]"], multirun=True)
    assert [config(*job).passes for job in both] == [("forward",), ("backward",)]
    assert jobs(["seqlen=range(1,4)", "mask=glob(*document)"], multirun=True)[-1] == ["seqlen=3", "mask=prefix_lm_document"]
    assert config("kernel.names=[dense,reference]").kernels == ("dense", "reference")


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["mask=causal,docment"], "docment"),
        (["seqlen=interval(1,2)"], "write them out"),
        (["seqlen=glob(*)"], "no option matches"),
        (["mask=glob(zz*)"], "no option matches"),
        (["results_dir=a,b"], "share one results folder"),
    ],
)
def test_sweeps_that_cannot_run(overrides: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=".*" + said.replace("*", ".")):
        jobs(overrides, multirun=True)
