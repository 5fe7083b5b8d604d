"""Adapters of packages that are not installed here, against stand-ins that insist on the documented interface.

What an adapter says it can express must come out right: output, LSE and gradients against the dense oracle, with several
batch items, grouped heads and a length that is no multiple of a tile. What it cannot, it refuses with the reason.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import fake_kernels
import pytest
import torch
from fake_backends import Fake
from fake_kernels import cute, flash_attention, magi
from fake_kernels.maths import CALLS
from fake_problem import group, options, problem_of

from harness.backends import BACKENDS, MissingBackend
from harness.backends import flashmask_3 as flashmask_3_module
from harness.backends import package as package_module
from harness.backends.base import Attend
from harness.cases import Group, Problem, Timing
from harness.gate.check import run as run_once
from harness.inputs import make_inputs, make_mask
from harness.measure import run_group
from harness.resume import Planned
from harness.rows import read_rows
from harness.runner import EXIT_FAILED, run
from harness.timing import Timer
from masks.column_mask import ColumnMask
from masks.dense import dense
from masks.families import FAMILIES

PACKAGES = {
    "flash_attn_2": "flash-attn",
    "flash_attn_3": "flash_attn_3",
    "flash_attn_4": "flash-attn-4",
    "flashmask_3": "flashmask",
    "magi": "magi_attention",
}
PACKED = {"full", "causal", "sliding_window", "causal_document", "document"}
EXPRESSES = {
    "flash_attn_2": PACKED,
    "flash_attn_3": PACKED,
    "flash_attn_4": set(FAMILIES),
    "flashmask_3": set(FAMILIES),
    "magi": set(FAMILIES) - {"random_eviction", "block_sparse"},
}
SHAPES = {"MHA": {"heads": 2, "kv_heads": 2}, "GQA": {"heads": 4, "kv_heads": 2}}


_EXPECTED: dict[str, dict[str, torch.Tensor]] = {}
_DENSE: dict[str, torch.Tensor] = {}


def oracle(mask: ColumnMask) -> torch.Tensor:
    """The dense mask, element by element; made once a mask."""
    key = mask.digest()
    if key not in _DENSE:
        _DENSE[key] = dense(mask)
    return _DENSE[key]


def expected(problem: Problem) -> dict[str, torch.Tensor]:
    """out, LSE and gradients in double precision; made once a problem."""
    key = repr(problem)
    if key not in _EXPECTED:
        _EXPECTED[key] = _expected(problem)
    return _EXPECTED[key]


def _expected(problem: Problem) -> dict[str, torch.Tensor]:
    inputs = make_inputs(problem, "cpu")
    seen = oracle(make_mask(problem, "cpu"))
    seen = seen.repeat_interleave(problem.heads // seen.shape[1], dim=1)
    leaves = [tensor.double().requires_grad_() for tensor in (inputs.q, inputs.k, inputs.v)]
    q, k, v = (tensor.transpose(1, 2) for tensor in leaves)
    k, v = (tensor.repeat_interleave(problem.heads // problem.kv_heads, dim=1) for tensor in (k, v))
    scores = (q @ k.transpose(2, 3) * problem.head_dim**-0.5).masked_fill(~seen, -torch.inf)
    out = (torch.softmax(scores, -1) @ v).transpose(1, 2)
    grads = torch.autograd.grad(out, leaves, inputs.dout.double())
    found = dict(zip(("dq", "dk", "dv"), grads, strict=True))
    return {"out": out.detach(), "lse": torch.logsumexp(scores, -1).detach(), **found}


def compare(name: str, problem: Problem) -> None:
    """The adapter's results, by autograd as the harness calls it, against the oracle's."""
    backend = BACKENDS[name]
    mask = make_mask(problem, "cpu")
    attend = backend.prepare(problem, mask)
    found = run_once(attend, backend.layout, make_inputs(problem, "cpu"), gradients=True)
    for key, right in expected(problem).items():
        value = found[key]
        assert value is not None
        assert value.shape == right.shape, key
        assert value.dtype == (torch.float32 if key == "lse" else torch.bfloat16), key
        # The LSE is not rounded to 16 bits: one key more or less of 264 shows.
        tolerance = 1e-4 if key == "lse" else 0.02 * float(right.abs().max())
        assert float((value.double() - right).abs().max()) <= tolerance, key
    # Without gradients too: there some leave the LSE out unless they are asked.
    assert run_once(attend, backend.layout, make_inputs(problem, "cpu"), gradients=False)["lse"] is not None


def refusal(name: str, problem: Problem, pass_: str = "both", mask: ColumnMask | None = None) -> str | None:
    return BACKENDS[name].unsupported(problem, make_mask(problem, "cpu") if mask is None else mask, pass_, "cuda")


@pytest.fixture(autouse=True)
def everything_installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with fake_kernels.install(monkeypatch, *PACKAGES.values()):
        # Two distributions share the package flash_attn, as they do on a user's disk.
        for name, module in fake_kernels.modules_of("flash-attn").items():
            vars(sys.modules[name]).update({key: value for key, value in vars(module).items() if key.startswith("flash")})
        yield


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", PACKAGES)
def test_what_is_expressed_is_right_and_the_rest_is_refused(name: str, family: str, shape: str) -> None:
    problem = problem_of(family, **SHAPES[shape])
    reason = refusal(name, problem)
    heads_of_their_own = FAMILIES[family].per_head and shape == "GQA" and name == "flashmask_3"
    if family in EXPRESSES[name] and not heads_of_their_own:
        assert reason is None
        compare(name, problem)
    else:
        assert reason
        assert not CALLS


REASONS = [
    ("flash_attn_2", "share_question", {}, "not a plain document mask"),
    ("flash_attn_3", "causal_blockwise", {}, "hidden in the middle of their visible rows"),
    ("flash_attn_2", "random_eviction", {}, "differs between batch items or heads"),
    ("flash_attn_3", "block_sparse", {}, "cannot carry a block mask"),
    ("magi", "random_eviction", {}, "the same for every head; the mask has 2 heads"),
    ("magi", "random_eviction", {"heads": 1, "kv_heads": 1, "seqlen": 10_000}, "needs more than 4096 attention slices"),
    ("magi", "full", {"head_dim": 96}, "head dims 64, 128, not 96"),
    ("magi", "full", {"dtype": "float32"}, "takes bfloat16 and float16, not float32"),
    ("flashmask_3", "random_eviction", {"heads": 4}, "1 mask head or one a KV head (2), not 4"),
    ("flashmask_3", "block_sparse", {"head_dim": 64}, "head dim 128 only, not 64"),
    ("flashmask_3", "causal", {"head_dim": 264}, "up to 256 that are multiples of 8, not 264"),
    ("flash_attn_2", "causal", {"head_dim": 100}, "multiples of 8, not 100"),
    ("flash_attn_2", "causal", {"dtype": "float32"}, "takes bfloat16 and float16, not float32"),
    ("flash_attn_4", "share_question", {"head_dim": 256}, "up to 128 that are multiples of 8, not 256"),
]


@pytest.mark.parametrize(("name", "family", "shape", "reason"), REASONS)
def test_a_refusal_says_why(name: str, family: str, shape: dict[str, Any], reason: str) -> None:
    told = refusal(name, problem_of(family, **shape))
    assert told is not None and reason in told


def test_vectors_of_every_head_are_only_taken_where_they_are_written_for() -> None:
    zero = torch.zeros((1, 2, 264), dtype=torch.int32)
    mask = ColumnMask(lts=zero + 264, ute=zero + torch.arange(264, dtype=torch.int32) // 2, seqlen_q=264, seqlen_k=264)
    told = refusal("flash_attn_4", problem_of("full"), mask=mask)
    assert told == "vectors of every head's own are handed to it for causal LTS masks only, not for lts, ute"


@pytest.mark.parametrize("name", PACKAGES)
def test_the_harness_checks_and_times_it(name: str) -> None:
    """The worker's whole way, the gate included: documents, one sequence, no verdict but figures."""
    problem = problem_of("document", seqlen=200, batch=1)
    timing = Timing(protocol="burst", rounds=1, min_samples=1, max_samples=1, target_s=0.001)
    asked = Group(problem, (name,), ("forward", "backward"), "cpu", timing)
    events: list[dict[str, Any]] = []
    run_group(planned(asked), Timer("cpu", timing), lambda **event: events.append(event))
    assert [event for event in events if event["event"] == "verdict"] == []
    (measured,) = [event for event in events if event["event"] == "round"]
    assert [entry["pass"] for entry in measured["entries"]] == ["forward", "backward"]
    assert all(entry["errors"]["lse_max"] <= 1 for entry in measured["entries"])


@pytest.mark.parametrize("has_backward", [True, False])
def test_a_forward_pass_alone_is_that_of_training_where_there_is_one(
    has_backward: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the same case would be two. The gate, which needs no gradients then, asks for none."""
    seen = set()

    class Seen(Fake):
        def unsupported(self, problem: Any, mask: Any, pass_: str, device: str) -> str | None:
            return None if has_backward or pass_ == "forward" else "no backward pass"

        def prepare(self, problem: Any, mask: Any) -> Attend:
            attend = super().prepare(problem, mask)

            def watched(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
                seen.add(q.requires_grad)
                return attend(q, k, v)

            return watched

    monkeypatch.setitem(BACKENDS, "good", Seen())
    timing = Timing(protocol="burst", rounds=1, min_samples=1, max_samples=1, target_s=0.001)
    events: list[dict[str, Any]] = []
    asked = Group(problem_of("causal", seqlen=64), ("good",), ("forward",), "cpu", timing)
    run_group(planned(asked), Timer("cpu", timing), lambda **event: events.append(event))
    assert [event["event"] for event in events].count("round") == 1
    assert seen == ({False, True} if has_backward else {False})


def planned(asked: Group) -> Planned:
    from harness.resume import Planned

    todo = {
        (number, kernel, pass_) for number in range(asked.timing.rounds) for kernel in asked.kernels for pass_ in asked.passes
    }
    return Planned(asked, frozenset(todo))


def test_a_conversion_that_is_off_by_one_row_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a single column: one key less for a single row."""
    right = flashmask_3_module.indices_of

    def off(mask: ColumnMask, batch: int) -> torch.Tensor:
        found = right(mask, batch)
        found[0, 0, 200, 0] -= 1
        return found

    monkeypatch.setattr(flashmask_3_module, "indices_of", off)
    with pytest.raises(AssertionError, match="out|lse"):
        compare("flashmask_3", problem_of("causal_document"))


# -- what a competitor would do slowly or silently wrong ---------------------------------------------------------


def test_flash_attention_4_gets_tile_lists_of_both_passes() -> None:
    """Without those of the backward pass its gradients are right and every tile is computed."""
    compare("flash_attn_4", problem_of("share_question", seqlen=400))
    call = CALLS[0]
    for lists in (call["lists"], call["lists_bwd"]):
        listed = int(lists.mask_block_cnt.sum() + lists.full_block_cnt.sum())
        assert 4 <= listed < 10, "as many as the causal tiles: nothing is skipped"
    assert int(call["lists"].full_block_cnt.sum()) == int(call["lists_bwd"].full_block_cnt.sum())


def test_a_backward_list_that_lost_a_tile_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lossy(cute.BlockSparseTensorsTorch):
        made = 0

        def __new__(cls, **given: Any) -> Any:
            Lossy.made += 1
            if Lossy.made == 2:
                given["mask_block_cnt"] = (given["mask_block_cnt"] - 1).clamp(0)
            return super().__new__(cls, **given)

    monkeypatch.setattr(sys.modules["flash_attn.cute.block_sparsity"], "BlockSparseTensorsTorch", Lossy)
    with pytest.raises(AssertionError, match="dq"):
        compare("flash_attn_4", problem_of("share_question"))


def test_masks_that_flags_express_take_no_element_function() -> None:
    for family, causal, window in (
        ("full", False, (None, None)),
        ("causal", True, (None, None)),
        ("sliding_window", True, (15, 0)),
    ):
        CALLS.clear()
        compare("flash_attn_4", problem_of(family))
        assert {(call["function"], call["mask_mod"]) for call in CALLS} == {("func", None)}
        assert (CALLS[0]["causal"], CALLS[0]["window_size"]) == (causal, window)


def test_documents_of_a_batch_are_one_packed_sequence() -> None:
    for name in ("flash_attn_2", "flash_attn_3", "flash_attn_4"):
        CALLS.clear()
        compare(name, problem_of("causal_document"))
        assert {call["function"] for call in CALLS} == {"varlen"}


def test_magi_is_told_when_no_rows_are_shared() -> None:
    for family, alone in (("document", True), ("causal_document", True), ("share_question", False)):
        CALLS.clear()
        compare("magi", problem_of(family))
        assert {call["no_atomics"] for call in CALLS} == {alone}, family


@pytest.mark.parametrize("name", PACKAGES)
def test_determinism_is_asked_for_as_torch_is_asked(name: str) -> None:
    problem = problem_of("document")
    compare(name, problem)
    assert not any(call["deterministic"] for call in CALLS)
    CALLS.clear()
    torch.use_deterministic_algorithms(True)
    try:
        assert refusal(name, problem) is None
        compare(name, problem)
        listed = refusal("flash_attn_4", problem_of("share_question"))
        assert listed is not None and "write order" in listed
        assert refusal("flash_attn_4", problem_of("share_question"), "forward") is None
        assert refusal("flashmask_3", problem_of("block_sparse")) == "has no deterministic mode with a block mask"
        assert "head dim 128 only" in str(refusal("flashmask_3", problem_of("causal", head_dim=256)))
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(call["deterministic"] for call in CALLS)


# -- missing, too old, for another GPU, broken ------------------------------------------------------------------------


@pytest.mark.parametrize("name", PACKAGES)
def test_a_probe_says_what_is_missing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    probe = BACKENDS[name].probe
    found = probe("cuda")
    assert found.ok and fake_kernels.VERSIONS[PACKAGES[name]] in str(found.version)
    assert probe("cpu").reason == "needs an NVIDIA GPU"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (7, 5))
    found = probe("cuda")
    assert not found.ok and "this GPU has compute capability 7.5" in str(found.reason)
    monkeypatch.setattr(package_module, "package_version", lambda _: "0.9.1")
    assert "0.9.1 is installed" in str(probe("cuda").reason)
    monkeypatch.setattr(package_module, "package_version", lambda _: "built here")
    assert "compute capability" in str(probe("cuda").reason)  # a version nobody can compare is left to loading
    monkeypatch.setattr(package_module, "package_version", lambda _: None)
    found = probe("cuda")
    assert found.reason == f"{PACKAGES[name]} is not installed" and found.install


def test_versions_are_compared_as_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    for version, good in (("2.10.0", True), ("2.7.0.post2", True), ("2.6.3", False)):
        monkeypatch.setattr(package_module, "package_version", lambda _, version=version: version)
        assert BACKENDS["flash_attn_2"].probe("cuda").ok is good
    monkeypatch.setattr(package_module, "package_version", lambda _: "4.0.0b9")
    assert not BACKENDS["flash_attn_4"].probe("cuda").ok


@pytest.mark.parametrize(
    ("variable", "value"),
    [("MAGI_ATTENTION_KERNEL_BACKEND", "sdpa"), ("MAGI_ATTENTION_FA4_BACKEND", "1"), ("MAGI_ATTENTION_SDPA_BACKEND", "1")],
)
def test_magi_with_another_kernel_inside_is_not_ffa(variable: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAGI_ATTENTION_KERNEL_BACKEND", "ffa")
    assert BACKENDS["magi"].probe("cuda").ok
    monkeypatch.setenv(variable, value)
    found = BACKENDS["magi"].probe("cuda")
    assert not found.ok and variable in str(found.reason)


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_that_does_not_load_is_a_missing_backend(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = BACKENDS[name].package.module  # type: ignore[attr-defined]

    class Broken(ModuleType):
        def __getattr__(self, attribute: str) -> Any:
            raise ImportError("undefined symbol: _ZN3c10\nand more")

    problem = problem_of("share_question" if name in ("flash_attn_4", "magi") else "document", seqlen=100)
    events: list[dict[str, Any]] = []
    asked = Group(problem, (name,), ("forward",), "cpu")
    # Undone here, before the stand-in goes: later it would come back, and stay for the tests of other files.
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, module, Broken(module))
        with pytest.raises(MissingBackend, match="does not load: ImportError: undefined symbol: _ZN3c10$"):
            BACKENDS[name].prepare(problem, make_mask(problem, "cpu"))
        run_group(planned(asked), Timer("cpu", asked.timing), lambda **event: events.append(event))
    (verdict,) = [event for event in events if event["event"] == "verdict"]
    assert verdict["status"] == "missing_backend" and "undefined symbol" in verdict["reason"]


def test_another_interface_is_told_before_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    def older(q: Any, k: Any, v: Any, causal: bool = False, deterministic: bool = False) -> Any:
        raise AssertionError("called")

    monkeypatch.setattr(sys.modules["flash_attn_interface"], "flash_attn_func", older)
    problem = problem_of("causal", seqlen=100)
    with pytest.raises(MissingBackend, match=r"takes no return_attn_probs: another interface than that of 3.0.0b1"):
        BACKENDS["flash_attn_3"].prepare(problem, make_mask(problem, "cpu"))


@pytest.mark.parametrize("name", PACKAGES)
def test_a_run_without_the_package_records_a_missing_backend(name: str, tmp_path: Path) -> None:
    assert run([group((name,))], options(tmp_path)) == EXIT_FAILED
    rows = read_rows(tmp_path)
    assert {(row["kernel"], row["status"]) for row in rows} == {(name, "missing_backend")}
    assert all("needs an NVIDIA GPU" in row["reason"] and row["samples_ms"] is None for row in rows)


# -- the stand-ins insist ------------------------------------------------------------------------------------------


def qkv(*shape: int, dtype: torch.dtype = torch.bfloat16) -> list[torch.Tensor]:
    return [torch.zeros(shape, dtype=dtype) for _ in range(3)]


STARTS = torch.tensor([0, 10, 30], dtype=torch.int32)
VARLEN = [flash_attention.varlen_func_2, flash_attention.varlen_func_3, flash_attention.varlen_func_4]
BAD_STARTS = [
    ({"cu_seqlens_q": STARTS.long()}, "int32 is documented"),
    ({"cu_seqlens_k": STARTS.to("meta")}, "is on meta"),
    ({"cu_seqlens_q": torch.tensor([0, 10, 29], dtype=torch.int32)}, "cu_seqlens_q"),
    ({"max_seqlen_q": 19}, "a sequence is longer"),
    ({"max_seqlen_k": torch.tensor(20)}, "max_seqlen_k is a Tensor"),
]


@pytest.mark.parametrize(("wrong", "reason"), BAD_STARTS)
@pytest.mark.parametrize(
    "function", [flash_attention.varlen_func_2, flash_attention.varlen_func_3, flash_attention.varlen_func_4]
)
def test_wrong_packing_is_refused_by_the_stand_ins(function: Any, wrong: dict[str, Any], reason: str) -> None:
    right: dict[str, Any] = {"cu_seqlens_q": STARTS, "cu_seqlens_k": STARTS, "max_seqlen_q": 20, "max_seqlen_k": 20}
    function(*qkv(30, 2, 64), **right)
    with pytest.raises(AssertionError, match=reason):
        function(*qkv(30, 2, 64), **right | wrong)
    with pytest.raises(AssertionError, match="4 dimensions"):
        function(*qkv(1, 30, 2, 64), **right)
    with pytest.raises(AssertionError, match="float32"):
        function(*qkv(30, 2, 64, dtype=torch.float32), **right)
    with pytest.raises(TypeError, match="cu_seqlens"):
        function(*qkv(30, 2, 64), cu_seqlens=STARTS)


def test_wrong_slices_are_refused_by_the_stand_in() -> None:
    def call(rows: list[list[int]], columns: list[list[int]], **more: Any) -> None:
        named = {"q_ranges": rows, "k_ranges": columns, "attn_type_map": [0] * len(rows)}
        tensors = {name: torch.tensor(values, dtype=torch.int32) for name, values in named.items()}
        magi.flex_flash_attn_func(*qkv(30, 2, 64), **tensors | more)

    call([[0, 30], [0, 30]], [[0, 10], [10, 30]])
    with pytest.raises(AssertionError, match="count twice"):
        call([[0, 30], [5, 6]], [[0, 10], [9, 30]])
    with pytest.raises(AssertionError, match="not atomically"):
        call([[0, 30], [0, 30]], [[0, 10], [10, 30]], disable_fwd_atomic_reduction=True)
    with pytest.raises(AssertionError, match="int32 is documented"):
        call([[0, 30]], [[0, 10]], attn_type_map=torch.zeros(1))
    with pytest.raises(AssertionError, match="rows 0:31"):
        call([[0, 31]], [[0, 10]])
