"""The Transformers attention function: tiny models against eager attention, masks against brute force, refusals."""

from __future__ import annotations

import copy
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

import fm3_kernel.transformers as ours
from fm3_kernel import FM3Error, model_mask
from fm3_kernel.model_mask import ModelMask, Packing

transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'transformers>=5.4'")

VOCABULARY, LENGTH = 40, 13
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    # Weights this large make attention matter: with the default the logits hardly notice a wrong mask.
    "initializer_range": 0.3,
}
IDS = torch.randint(0, VOCABULARY, (2, LENGTH), generator=torch.Generator().manual_seed(1))
LENGTHS = (5, 1, 4, 3)
POSITIONS = torch.cat([torch.arange(n) for n in LENGTHS]).unsqueeze(0)


@pytest.fixture(autouse=True)
def _registered() -> None:
    ours.register()


def llama(**changes: Any) -> Any:
    return transformers.LlamaConfig(**(SIZES | changes))


def pair(config: Any, kind: str = "ForCausalLM") -> tuple[Any, Any]:
    """The same model with eager attention and with ours, float32: in float64 eager makes NaN of a row that sees nothing."""
    models = []
    for name in ("eager", ours.NAME):
        torch.manual_seed(0)
        cls = getattr(transformers, type(config).__name__.removesuffix("Config").removesuffix("Text") + kind)
        models.append(cls._from_config(copy.deepcopy(config), attn_implementation=name).eval())
        assert models[-1].config._attn_implementation == name
    return models[0], models[1]


def outputs_and_gradients(model: Any, ids: Tensor, real: Tensor | None = None, **kwargs: Any) -> list[Tensor]:
    """The first output at real tokens, and the gradients of every weight from it."""
    model.zero_grad()
    out = model(ids, **kwargs)[0]
    out = out.reshape(-1, out.shape[-1]) if real is None else out[real.bool()]
    (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)).sum().backward()
    return [out.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def assert_same(got: list[Tensor], want: list[Tensor]) -> None:
    assert len(got) == len(want) > 1
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=2e-5 * max(1.0, b.abs().max().item()))


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_causal(kv_heads: int) -> None:
    eager, flash = pair(llama(num_key_value_heads=kv_heads))
    assert_same(outputs_and_gradients(flash, IDS), outputs_and_gradients(eager, IDS))


@pytest.mark.parametrize("use_cache", [False, True])
def test_packed_documents_are_separate_runs(use_cache: bool) -> None:
    eager, flash = pair(llama())
    got = outputs_and_gradients(flash, IDS[:1], position_ids=POSITIONS, use_cache=use_cache)
    parts = IDS[:1].split(LENGTHS, dim=1)
    apart = torch.cat([eager(part)[0][0] for part in parts])
    torch.testing.assert_close(got[0], apart, rtol=0, atol=2e-5)
    assert_same(got, outputs_and_gradients(eager, IDS[:1], position_ids=POSITIONS, use_cache=False))
    assert not torch.allclose(apart, eager(IDS[:1])[0][0], atol=1e-2)


def test_packed_documents_of_each_batch_item() -> None:
    eager, flash = pair(llama())
    positions = torch.cat([POSITIONS, torch.cat([torch.arange(n) for n in (2, 11)]).unsqueeze(0)])
    arguments = {"position_ids": positions, "use_cache": False}
    assert_same(outputs_and_gradients(flash, IDS, **arguments), outputs_and_gradients(eager, IDS, **arguments))


@pytest.mark.parametrize("form", ["lengths", "numbers", "all"])
@pytest.mark.parametrize("window", [None, 3])
def test_what_the_flattening_collator_returns(form: str, window: int | None) -> None:
    collator = transformers.DataCollatorWithFlattening(
        return_flash_attn_kwargs=form != "numbers", return_seq_idx=form != "lengths"
    )
    batch = collator([{"input_ids": part.tolist()} for part in IDS[0].split(LENGTHS)], return_tensors="pt")
    batch.pop("labels")
    ids, positions = batch.pop("input_ids"), batch["position_ids"]
    sliding = transformers.MistralConfig(**SIZES, sliding_window=window) if window else llama()
    eager, flash = pair(sliding)
    want = outputs_and_gradients(eager, ids, position_ids=positions, use_cache=False)
    assert_same(outputs_and_gradients(flash, ids, **batch), want)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("window", [None, 4])
def test_padding(side: str, window: int | None) -> None:
    real = torch.ones((2, LENGTH), dtype=torch.long)
    real[0, :4] = 0
    real = real if side == "left" else real.flip(1)
    positions = (real.cumsum(-1) - 1).clamp(min=0)
    sliding = transformers.MistralConfig(**SIZES, sliding_window=window) if window else llama()
    eager, flash = pair(sliding)
    arguments = {"real": real, "attention_mask": real, "position_ids": positions}
    got, want = outputs_and_gradients(flash, IDS, **arguments), outputs_and_gradients(eager, IDS, **arguments)
    assert_same(got, want)
    alone = eager(IDS[:1][real[:1].bool()].unsqueeze(0))[0][0]
    torch.testing.assert_close(got[0][: LENGTH - 4], alone, rtol=0, atol=2e-5)


def test_some_layers_with_a_window() -> None:
    config = transformers.Qwen3Config(**SIZES, head_dim=8, use_sliding_window=True, sliding_window=4, max_window_layers=1)
    assert set(config.layer_types) == {"full_attention", "sliding_attention"}
    eager, flash = pair(config)
    want = outputs_and_gradients(eager, IDS)
    assert_same(outputs_and_gradients(flash, IDS), want)
    plain = copy.deepcopy(config)
    plain.layer_types = ["full_attention"] * 2
    assert not torch.allclose(want[0], outputs_and_gradients(pair(plain)[0], IDS)[0], atol=1e-2)


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("padded", [False, True])
def test_a_cache_changes_nothing(window: int | None, padded: bool) -> None:
    sliding = transformers.MistralConfig(**SIZES, sliding_window=window) if window else llama()
    eager, flash = pair(sliding)
    real = torch.ones((2, LENGTH), dtype=torch.long)
    real[0, : 3 if padded else 0] = 0
    positions = (real.cumsum(-1) - 1).clamp(min=0)
    want = eager(IDS, attention_mask=real, position_ids=positions, use_cache=False)[0]
    cache = transformers.DynamicCache(config=sliding)
    got = []
    for start, end in ((0, 6), (6, 9), (9, 10), (10, 11), (11, 12), (12, 13)):
        seen = real[:, :end] if padded else None
        # By place: later versions call the cache by another name.
        got.append(flash(IDS[:, start:end], seen, positions[:, start:end], cache, use_cache=True)[0])
    kept = real.bool()
    torch.testing.assert_close(torch.cat(got, dim=1)[kept], want[kept], rtol=0, atol=2e-5)


@pytest.mark.parametrize("cache", [None, "static"])
def test_generate(cache: str | None) -> None:
    eager, flash = pair(llama(pad_token_id=0, eos_token_id=None))
    real = torch.ones((2, LENGTH), dtype=torch.long)
    real[0, :4] = 0
    arguments = {"attention_mask": real, "max_new_tokens": 5, "do_sample": False}
    assert torch.equal(flash.generate(IDS, cache_implementation=cache, **arguments), eager.generate(IDS, **arguments))


@pytest.mark.parametrize("padded", [False, True])
def test_bidirectional(padded: bool) -> None:
    sizes = {name: value for name, value in SIZES.items() if name != "num_key_value_heads"}
    eager, flash = pair(transformers.BertConfig(**sizes), "Model")
    real = torch.ones((2, LENGTH), dtype=torch.long)
    real[0, 9:] = 0
    arguments = {"real": real, "attention_mask": real} if padded else {}
    assert_same(outputs_and_gradients(flash, IDS, **arguments), outputs_and_gradients(eager, IDS, **arguments))


def test_layers_share_one_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    prepare = model_mask.prepare_mask
    monkeypatch.setattr(model_mask, "prepare_mask", lambda mask: made.append(mask) or prepare(mask))
    _, flash = pair(llama(num_hidden_layers=4))
    flash(IDS[:1], position_ids=POSITIONS)
    assert len(made) == 1
    flash(IDS, attention_mask=torch.ones_like(IDS))
    assert len(made) == 2
    _, mixed = pair(
        transformers.Qwen3Config(
            **(SIZES | {"num_hidden_layers": 4}), head_dim=8, use_sliding_window=True, sliding_window=4, max_window_layers=2
        )
    )
    mixed(IDS)
    assert len(made) == 4


# -- masks against brute force ------------------------------------------------------------------------------------------


def seen(mask: ModelMask, **kwargs: Any) -> Tensor:
    column_mask = mask.prepared(torch.device("cpu"), **kwargs).mask
    return column_mask.visible(torch.arange(mask.rows), torch.arange(mask.columns))[:, 0]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 1, 3])
@pytest.mark.parametrize(("rows", "columns", "position"), [(7, 7, 0), (3, 9, 6), (4, 10, 2), (1, 8, 7), (1, 8, 3)])
@pytest.mark.parametrize("on_device", [False, True])
def test_rules_of_a_model_mask(
    causal: bool, window: int | None, rows: int, columns: int, position: int, on_device: bool
) -> None:
    kept = torch.rand((2, columns), generator=torch.Generator().manual_seed(0)) > 0.3
    query, key = torch.arange(rows).view(-1, 1) + position, torch.arange(columns)
    want = kept.unsqueeze(1) & (key <= query if causal else torch.ones_like(key <= query))
    if window is not None:
        want = want & (query - key < window if causal else (query - key).abs() <= window)
    shift = torch.tensor(-position) if on_device else -position
    assert torch.equal(seen(ModelMask(2, rows, columns, causal, shift, window, kept)), want)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("lengths", [((3, 1, 4), None), ((3, 1, 4), (3, 1, 4)), ((2, 1, 3), (4, 1, 5))])
@pytest.mark.parametrize("left_over", [0, 2])
def test_cumulative_lengths(causal: bool, window: int | None, lengths: Any, left_over: int) -> None:
    of_queries, of_keys = lengths[0], lengths[1] or lengths[0]
    rows, columns = sum(of_queries) + left_over, sum(of_keys) + left_over
    want = torch.zeros((1, rows, columns), dtype=torch.bool)
    row = column = 0
    for m, n in zip(of_queries, of_keys, strict=True):
        distance = torch.arange(n - m, n).view(-1, 1) - torch.arange(n)
        block = distance >= 0 if causal else torch.ones_like(distance, dtype=torch.bool)
        want[0, row : row + m, column : column + n] = block & (
            True if window is None else distance.abs() < window + (not causal)
        )
        row, column = row + m, column + n
    cu_q = torch.tensor([0, *of_queries]).cumsum(0)
    cu_k = cu_q if lengths[1] is None else torch.tensor([0, *of_keys]).cumsum(0)
    mask = ModelMask(1, rows, columns, causal, rows - columns)
    assert torch.equal(seen(mask, window=window, packing=Packing(cu_q=cu_q, cu_k=cu_k)), want)


def test_a_document_that_begins_after_a_cache() -> None:
    positions = torch.tensor([[5, 6, 0, 1]])
    got = seen(ModelMask(1, 4, 6, True, -2), packing=Packing(positions=positions))[0]
    assert got.int().tolist() == [[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 0, 0], [0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 1, 1]]


# -- refusals -----------------------------------------------------------------------------------------------------------

TOKENS = {"query": torch.zeros((1, 2, 5, 8)), "key": torch.zeros((1, 2, 5, 8)), "value": torch.zeros((1, 2, 5, 8))}
LENGTHS_OF_2 = torch.tensor([0, 2, 5])

REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"dropout": 0.1}, FM3Error, "dropout is 0.1; only 0.0.*attention_dropout"),
    ({"softcap": 50.0}, FM3Error, "softcap is 50.0.*'sdpa' or 'eager'"),
    ({"s_aux": torch.zeros(2)}, FM3Error, r"s_aux is \(2,\).*no attention sinks"),
    ({"head_mask": torch.ones(2)}, FM3Error, "head_mask"),
    ({"position_bias": torch.ones((1, 2, 5, 5))}, FM3Error, "position_bias"),
    ({"output_attentions": True}, FM3Error, "output_attentions is True.*weights are never formed"),
    ({"block_table": torch.zeros(2)}, FM3Error, "no paged cache"),
    ({"a_new_argument": 0}, FM3Error, "a_new_argument is 0.*not known"),
    ({"attention_mask": torch.zeros((1, 1, 5, 5))}, FM3Error, r"shape \(1, 1, 5, 5\); allowed: a padding mask .*ColumnMask"),
    ({"attention_mask": torch.ones((1, 4))}, FM3Error, "keys=5"),
    ({"attention_mask": [1]}, TypeError, "attention_mask is a list"),
    ({"attention_mask": ModelMask(1, 5, 5, True, 0), "is_causal": False}, FM3Error, "is_causal is False.*must agree"),
    ({"attention_mask": ModelMask(1, 5, 6, True, -1)}, FM3Error, "6 columns, this layer 5 and 5"),
    ({"cu_seq_lens_q": LENGTHS_OF_2}, FM3Error, "cu_seq_lens_k is missing"),
    ({"cu_seq_lens_q": LENGTHS_OF_2, "cu_seq_lens_k": LENGTHS_OF_2[:2]}, FM3Error, "expected .documents"),
    (
        {"cu_seq_lens_q": LENGTHS_OF_2, "cu_seq_lens_k": LENGTHS_OF_2}
        | {name: x.repeat(2, 1, 1, 1) for name, x in TOKENS.items()},
        FM3Error,
        "the batch is 2",
    ),
    (
        {"cu_seq_lens_q": LENGTHS_OF_2, "cu_seq_lens_k": LENGTHS_OF_2, "query": torch.zeros((1, 2, 3, 8))},
        FM3Error,
        "3 queries and 5 keys",
    ),
    ({"position_ids": torch.zeros((1, 4), dtype=torch.long)}, FM3Error, r"position_ids has shape \(1, 4\)"),
    ({"seq_idx": torch.zeros((1, 5)), "is_causal": False}, FM3Error, "bidirectional layer"),
    ({"value": torch.zeros((1, 2, 5, 4))}, FM3Error, "D_v is 4"),
]


@pytest.mark.parametrize(("changes", "error", "text"), REFUSED)
def test_refused_by_name(changes: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        ours.attention_forward(torch.nn.Module(), **({"attention_mask": None} | TOKENS | changes))


def test_arguments_that_change_nothing_are_accepted() -> None:
    nothing = {"softcap": None, "output_attentions": False, "use_cache": True, "max_length_q": 5, "s_aux": None}
    out, weights = ours.attention_forward(torch.nn.Module(), **TOKENS, attention_mask=None, **nothing)
    assert out.shape == (1, 5, 2, 8)
    assert weights is None


def test_masks_that_are_not_known_are_refused() -> None:
    known = transformers.masking_utils
    sizes = {"batch_size": 1, "q_length": 5, "kv_length": 5}
    for function, name in (
        (known.or_masks(known.causal_mask_function, lambda b, h, q, k: k < 2), "or_mask"),
        (known.and_masks(known.causal_mask_function, lambda b, h, q, k: k > 1), "lambda"),
        (known.chunked_causal_mask_function(2, torch.zeros(1)), "chunked_overlay"),
        (known.sliding_window_overlay(3), "other kind of window"),
    ):
        with pytest.raises(FM3Error, match=name):
            ours.column_mask_function(**sizes, mask_function=function)
    if hasattr(known, "remap_positions_for_packed_sequence"):
        function = known.remap_positions_for_packed_sequence(known.causal_mask_function, POSITIONS)
        with pytest.raises(FM3Error, match="without their numbers"):
            ours.column_mask_function(**sizes, mask_function=function)


def test_a_model_that_asks_for_more_is_refused() -> None:
    sizes = SIZES | {"head_dim": 8}
    with pytest.raises(FM3Error, match="softcap is 50.0"):
        pair(transformers.Gemma2Config(**sizes))[1](IDS)
    _, dropping = pair(llama(attention_dropout=0.5))
    dropping(IDS)
    with pytest.raises(FM3Error, match="dropout is 0.5"):
        dropping.train()(IDS)


def test_the_kernels_do_not_import_transformers() -> None:
    code = "import sys, fm3_kernel, fm3_kernel.transformers; assert 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_example_agrees_with_sdpa(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from examples import packed_documents

    monkeypatch.setattr(packed_documents, "STEPS", 3)
    packed_documents.main()
    assert "largest difference of 3 steps" in capsys.readouterr().out
