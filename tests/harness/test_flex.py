"""FlexAttention with other options than its own: the mask arrives as the mask."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fake_problem import problem_of
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention.flex_attention import create_mask

from harness.backends import BACKENDS
from harness.backends.flex_flash import mask_mod
from harness.inputs import make_inputs, make_mask, to_bshd
from masks.families import FAMILIES


def test_flex_with_what_its_compiler_finds_fastest_is_right() -> None:
    """On a CPU, where the probe refuses it since nothing is tried there: the mask and the inputs go in as by default."""
    problem = problem_of("causal_document", seqlen=200, dtype="float32")
    mask, inputs = make_mask(problem, "cpu"), make_inputs(problem, "cpu")
    outs = {}
    for name in ("flex_tuned", "dense"):
        own = inputs.in_layout(BACKENDS[name].layout)
        out, _ = BACKENDS[name].prepare(problem, mask)(own.q, own.k, own.v)
        outs[name] = to_bshd(out, BACKENDS[name].layout)
    torch.testing.assert_close(outs["flex_tuned"], outs["dense"], rtol=1e-4, atol=1e-5)
    assert BACKENDS["flex_tuned"].probe("cpu").reason == "needs an NVIDIA GPU"


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "block_sparse"])
@pytest.mark.parametrize("batch", [1, 2])
def test_the_element_function_of_the_flash_backend_is_the_mask(family: str, batch: int) -> None:
    """With one index a vector, whatever differs between batch items and heads."""
    mask = make_mask(problem_of(family, seqlen=200), "cpu")
    if batch > 1:
        other = {name: torch.cat([values, values.roll(1, -1)]) for name, values in mask.tensors().items()}
        mask = replace(mask, **other)
    heads = 2 * max(2, mask.heads)
    seen = create_mask(mask_mod(mask, heads), mask.batch, heads, 200, 200, device="cpu")
    rows, columns = torch.arange(200), torch.arange(200)
    wanted = mask.visible(rows, columns).expand(mask.batch, mask.heads, -1, -1).repeat_interleave(heads // mask.heads, dim=1)
    assert torch.equal(seen, wanted)


def test_no_constant_is_an_index_of_the_flash_backend() -> None:
    """What torch 2.11 does not compile there: the vectors are read by one tensor."""
    mask = make_mask(problem_of("share_question", seqlen=200), "cpu")
    graph = make_fx(mask_mod(mask, 4))(*(torch.arange(4) for _ in range(4)))
    reads = [node.args for node in graph.graph.nodes if node.target == torch.ops.aten.index.Tensor]
    assert reads and all(len(indices) == 1 for _, indices in reads)
    assert not [node for node in graph.graph.nodes if node.target == torch.ops.aten.select.int]
    sparse = problem_of("block_sparse")
    told = BACKENDS["flex_flash"].unsupported(sparse, make_mask(sparse, "cpu"), "forward", "cuda")
    assert told == "block masks are not handed to the FLASH backend"
