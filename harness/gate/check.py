"""The rule: when a competitor's result counts as right.

Per block of 128 rows (columns for dk and dv): the largest error is at most twice that of dense maths in the same dtype
plus one rounding of the block's largest value, and the relative L2 error at most twice too. A tensor-wide maximum would
be set by the shortest rows and pass a kernel that drops whole tiles. The census then counts every visible pair in every
head. Rows that see nothing must be exactly 0, with an LSE of -inf.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from harness.backends.base import Attend
from harness.gate.census import Expected, HeadCensus, code_passes, expect
from harness.gate.oracle import Blocks, Oracle
from harness.gate.whole import Answers
from harness.inputs import Inputs, to_bshd
from masks.column_mask import ColumnMask

SAMPLE_ABOVE = 8192
"""Up to this length every block of every head and batch item is compared. Above it: a sample of blocks in three heads
(first, last, one drawn), a few rows of all heads, and the census, which covers everything."""
SAMPLE = 16
"""Row blocks and column blocks of such a sample, at least."""
ROWS_OF_ALL_HEADS = 8

_LONG_SUM = 1e-5
"""Relative error of a float32 sum over many thousand terms, whatever its order: the least that is allowed to any dtype.
A lost tile of 128 keys in a row of 128K moves the result by a hundred times more."""


class Incorrect(Exception):
    """A competitor's result breaks the rule. ``errors`` holds what was measured until then."""

    def __init__(self, reason: str, errors: dict[str, float]) -> None:
        super().__init__(reason)
        self.errors = errors


def check(
    attend: Attend,
    layout: str,
    mask: ColumnMask,
    inputs: Inputs,
    answers: Answers,
    gradients: bool,
    seed: int = 0,
) -> dict[str, float]:
    """Check one competitor on the problem's own inputs and by census.

    Args:
        attend: the prepared competitor, in its ``layout``.
        inputs: ``[B, S, H, D]`` tensors; ``answers`` are of the same.
        gradients: check dq, dk and dv too.

    Returns:
        The largest error of every tensor over its allowance (1 = at the limit), and the census' largest misses.

    Raises:
        Incorrect: names the tensor, the block and the figures.
    """
    errors: dict[str, float] = {}
    _check_blocks(attend, layout, inputs, answers, gradients, seed, errors)
    _check_census(attend, layout, mask, inputs, gradients, answers.oracle.scale, seed, errors)
    return errors


def run(attend: Attend, layout: str, inputs: Inputs, gradients: bool) -> dict[str, Tensor | None]:
    """One call through autograd, as a user makes it: out, lse, dq, dk, dv as ``[B, S, H, D]``."""
    own = inputs.in_layout(layout)
    if not gradients:
        with torch.no_grad():
            out, lse = attend(own.q, own.k, own.v)
        return {"out": to_bshd(out, layout), "lse": lse}
    leaves = [t.detach().requires_grad_() for t in (own.q, own.k, own.v)]
    out, lse = attend(*leaves)
    found = torch.autograd.grad(out, leaves, own.dout)
    named = dict(zip(("dq", "dk", "dv"), (to_bshd(g, layout) for g in found), strict=True))
    return {"out": to_bshd(out.detach(), layout), "lse": None if lse is None else lse.detach(), **named}


def _check_blocks(
    attend: Attend, layout: str, inputs: Inputs, answers: Answers, gradients: bool, seed: int, errors: dict[str, float]
) -> None:
    oracle = answers.oracle
    result = run(attend, layout, inputs, gradients)
    for name, tensor in result.items():
        if tensor is not None and name != "lse" and not bool(torch.isfinite(tensor).all()):
            raise Incorrect(f"{name} holds values that are not finite", errors)
    lse = result["lse"]
    if max(oracle.rows, oracle.columns) <= SAMPLE_ABOVE:
        for part in answers.parts(gradients):
            if isinstance(part, Blocks):
                _judge(result[part.tensor], part, errors)
            elif lse is not None:
                _judge_lse(lse[part.item, list(part.heads)], part.exact, part.item, part.heads, errors)
        return
    row_tiles, column_tiles = oracle.tiles(oracle.rows, seed, SAMPLE), oracle.tiles(oracle.columns, seed + 1, SAMPLE)
    places = oracle.places(seed)
    for item, head in places:
        if lse is not None:
            _judge_lse(lse[item, [head]], oracle.head_rows(item, head)[1][None], item, (head,), errors)
        for blocks in oracle.row_blocks(item, head, row_tiles, gradients):
            _judge(result[blocks.tensor], blocks, errors)
    if gradients:
        group = oracle.heads // oracle.kv_heads
        for item, kv_head in sorted({(item, head // group) for item, head in places}):
            for blocks in oracle.column_blocks(item, kv_head, column_tiles):
                _judge(result[blocks.tensor], blocks, errors)
    _check_rows_of_all_heads(result["out"], inputs, oracle, seed, errors)


def _check_rows_of_all_heads(out: Tensor | None, inputs: Inputs, oracle: Oracle, seed: int, errors: dict[str, float]) -> None:
    """Above the sampling length: a few rows of every head of every batch item, so that no head goes unseen."""
    assert out is not None
    generator = torch.Generator().manual_seed(seed + 2)
    rows = torch.randint(0, oracle.rows, (ROWS_OF_ALL_HEADS,), generator=generator).to(out.device)
    for item in range(inputs.q.shape[0]):
        exact, plain = oracle.rows_of_all_heads(item, rows)
        found = out[item, rows].to(exact.dtype)
        values = [x.transpose(0, 1).unsqueeze(1) for x in (exact, plain, found)]
        of_all = Blocks("out", item, tuple(range(oracle.heads)), rows.view(1, -1), values[0], values[1])
        _compare_blocks(of_all, values[2], out.dtype, errors)


def _judge(tensor: Tensor | None, blocks: Blocks, errors: dict[str, float]) -> None:
    assert tensor is not None  # out always is; the gradients are when asked for
    if blocks.index.numel() == 0:
        return
    found = tensor[blocks.item][:, list(blocks.heads)][blocks.index.clamp(min=0)].permute(2, 0, 1, 3).to(blocks.exact.dtype)
    _compare_blocks(blocks, found.masked_fill((blocks.index < 0).unsqueeze(-1), 0), tensor.dtype, errors)


def _compare_blocks(blocks: Blocks, found: Tensor, dtype: torch.dtype, errors: dict[str, float]) -> None:
    """The rule, for all blocks at once; ``found`` has the shape of their values."""
    unit = max(torch.finfo(dtype).eps / 2, _LONG_SUM)  # one rounding
    name, exact, plain = blocks.tensor, blocks.exact, blocks.plain

    def largest(x: Tensor) -> Tensor:
        return x.abs().amax((2, 3)).flatten()

    def norm(x: Tensor) -> Tensor:
        return x.square().sum((2, 3)).sqrt().flatten()

    for kind, size in (("max", largest), ("l2", norm)):
        limit = 2 * size(plain - exact) + unit * size(exact)
        miss = size(found - exact)
        share = torch.where(limit > 0, miss / limit, torch.where(miss > 0, math.inf, 0.0))
        worst = int(share.argmax())
        value = float(share[worst])
        key = f"{name}_{kind}"
        errors[key] = round(max(errors.get(key, 0.0), min(value, 1e9)), 4)
        if not value <= 1:
            head, tile = divmod(worst, len(blocks.index))
            rows = blocks.index[tile]
            span = f"{int(rows[0])} to {int(rows.max())}"
            raise Incorrect(
                f"{name}[batch {blocks.item}, rows {span}, head {blocks.heads[head]}]: {kind} error {float(miss[worst]):.3g}, "
                f"allowed {float(limit[worst]):.3g}",
                errors,
            )


def _judge_lse(found: Tensor, exact: Tensor, item: int, heads: tuple[int, ...], errors: dict[str, float]) -> None:
    """Of some heads, ``[heads, S]``."""
    if exact.numel() == 0:
        return
    found = found.to(exact.dtype)
    empty = exact == -torch.inf
    wrong = (empty & (found != -torch.inf)).any(1)
    # float32 sums of many terms; a wrong base or sign is off by far more.
    limit = 1e-3 + 1e-5 * exact.masked_fill(empty, 0).abs().amax(1)
    miss = torch.where(empty, 0.0, (found - exact).abs()).amax(1)
    share = (miss / limit).nan_to_num(nan=math.inf)
    worst = int(share.argmax())
    errors["lse_max"] = round(max(errors.get("lse_max", 0.0), min(float(share[worst]), 1e9)), 4)
    if bool(wrong.any()):
        head = heads[int(wrong.int().argmax())]
        raise Incorrect(f"LSE of a row without keys is not -inf (batch {item}, head {head})", errors)
    if not float(share[worst]) <= 1:
        off, allowed = float(miss[worst]), float(limit[worst])
        raise Incorrect(f"LSE is off by {off:.3g} (batch {item}, head {heads[worst]}), allowed {allowed:.3g}", errors)


def _check_census(
    attend: Attend,
    layout: str,
    mask: ColumnMask,
    inputs: Inputs,
    gradients: bool,
    scale: float,
    seed: int,
    errors: dict[str, float],
) -> None:
    batch, _, heads, dim = inputs.q.shape
    kv_heads, device, dtype = inputs.k.shape[2], inputs.q.device, inputs.q.dtype
    generator = torch.Generator().manual_seed(seed)
    signs = (torch.randint(0, 2, (mask.seqlen_k,), generator=generator) * 2 - 1).to(device).float()

    def spread(rows: Tensor, count: int) -> Tensor:
        """[S, D] to [B, S, count, D] in the dtype of the problem."""
        return rows.to(dtype)[None, :, None].expand(batch, -1, count, -1).contiguous()

    census = [[HeadCensus(mask, b, h) for h in range(mask.heads)] for b in range(mask.batch)]
    rows_passes = code_passes(mask.seqlen_q, dim, device)
    columns_passes = code_passes(mask.seqlen_k, dim, device)
    for number in range(max(len(rows_passes), len(columns_passes))):
        codes_q = rows_passes[min(number, len(rows_passes) - 1)]
        codes_k = columns_passes[min(number, len(columns_passes) - 1)]
        code_q, code_k = codes_q.of_positions(mask.seqlen_q), codes_k.of_positions(mask.seqlen_k)
        flat_q, flat_k = torch.zeros_like(code_q), torch.zeros_like(code_k)
        signed = signs[:, None].expand(-1, dim)
        plain = Inputs(spread(flat_q, heads), spread(code_k, kv_heads), spread(code_k, kv_heads), spread(code_q, heads))
        results = [run(attend, layout, plain, False)]
        if gradients:
            values = spread(signed, kv_heads)
            for_dq = Inputs(plain.q, spread(signed * code_k, kv_heads), values, plain.dout)
            for_dk = Inputs(spread(code_q, heads), spread(flat_k, kv_heads), values, plain.dout)
            results += [run(attend, layout, for_dq, True), run(attend, layout, for_dk, True)]
        _compare(census, results, (codes_q, codes_k), signs, scale, (heads, kv_heads), errors)


def _compare(
    census: list[list[HeadCensus]],
    results: list[dict[str, Tensor | None]],
    codes: tuple[Any, Any],
    signs: Tensor,
    scale: float,
    shape: tuple[int, int],
    errors: dict[str, float],
) -> None:
    heads, kv_heads = shape
    mask_batch, mask_heads = len(census), len(census[0]) if census else 0
    out, lse = results[0]["out"], results[0]["lse"]
    assert out is not None
    unit = max(torch.finfo(out.dtype).eps, _LONG_SUM)
    # An expectation serves all the batch items and query heads that share it.
    for b in range(mask_batch):
        items = slice(None) if mask_batch == 1 else slice(b, b + 1)
        group: dict[int, list[Expected]] = {}
        for m in range(mask_heads):
            expected = expect(census[b][m], *codes, signs, scale)
            per_mask = heads // mask_heads
            q_heads = slice(m * per_mask, (m + 1) * per_mask)
            _count_out(out[items, :, q_heads], expected, unit, errors)
            if lse is not None:
                _count_lse(lse[items, q_heads], expected.counts, errors)
            if len(results) > 1:
                dq = results[1]["dq"]
                assert dq is not None
                _near(dq[items, :, q_heads], expected.dq[:, None], expected.dq_size[:, None], unit, "dq", errors)
                for kv_head in {h * kv_heads // heads for h in range(m * per_mask, (m + 1) * per_mask)}:
                    group.setdefault(kv_head, []).append(expected)
        if len(results) > 1:
            _compare_group(results, items, group, heads // kv_heads, unit, errors)


def _compare_group(
    results: list[dict[str, Tensor | None]],
    items: slice,
    group: dict[int, list[Expected]],
    group_size: int,
    unit: float,
    errors: dict[str, float],
) -> None:
    """dk and dv are sums over the query heads of a group, which may have masks of their own."""
    dv, dk = results[1]["dv"], results[2]["dk"]
    assert dv is not None and dk is not None
    for kv_head, members in group.items():
        copies = group_size // len(members)
        total_dv = copies * torch.stack([e.dv for e in members]).sum(0)
        total_dk = copies * torch.stack([e.dk for e in members]).sum(0)
        size = copies * torch.stack([e.dk_size for e in members]).sum(0)
        _near(dv[items, :, kv_head], total_dv, total_dv, unit, "dv", errors)
        _near(dk[items, :, kv_head], total_dk, size, unit, "dk", errors)


def _worst(miss: Tensor, limit: Tensor, name: str, errors: dict[str, float]) -> None:
    share = float((miss / limit).nan_to_num(nan=1e9).max()) if miss.numel() else 0.0
    errors[f"census_{name}"] = round(max(errors.get(f"census_{name}", 0.0), min(share, 1e9)), 4)
    if share > 1:
        position = int((miss / limit).nan_to_num(nan=1e9).argmax())
        index = tuple(int(i) for i in torch.unravel_index(torch.tensor(position), miss.shape))
        raise Incorrect(f"census of {name}: off by {share:.3g} times the allowance at {index} of {tuple(miss.shape)}", errors)


def _count_out(out: Tensor, expected: Expected, unit: float, errors: dict[str, float]) -> None:
    """Counts are whole numbers: less than half a key off, but for two roundings of the quotient."""
    if bool(out[:, expected.counts == 0].any()):
        raise Incorrect("census of out: a row without keys is not exactly 0", errors)
    found, counts = out.float() * expected.counts[:, None, None], expected.out[:, None]
    _worst((found - counts).abs(), (0.45 + unit * counts).expand_as(found), "out", errors)


def _count_lse(lse: Tensor, counts: Tensor, errors: dict[str, float]) -> None:
    """exp(LSE) is the number of visible keys of the row; -inf means none."""
    empty = counts == 0
    if not bool((lse[..., empty] == -torch.inf).all()):
        raise Incorrect("census of lse: a row without keys has an LSE other than -inf", errors)
    seen = counts[~empty]
    limit = torch.maximum(0.45 / seen, torch.full_like(seen, 3e-6))
    _worst((lse[..., ~empty].float() - seen.log()).abs(), limit.expand_as(lse[..., ~empty]), "lse", errors)


def _near(found: Tensor, expected: Tensor, size: Tensor, unit: float, name: str, errors: dict[str, float]) -> None:
    """Sums of rounded terms: within two roundings of the sum of their absolute values; exactly 0 where nothing adds."""
    limit = (2 * unit * size).clamp(min=1e-30)
    _worst((found.to(expected.dtype) - expected).abs(), limit.expand_as(found), name, errors)
