"""PyTorch's own context parallelism for FlexAttention: ``flex_cp``. The one strategy that is not on this project's kernel.

Keys and values are gathered from all ranks before the call, rows are dealt out head and tail, and the block mask is cut by
PyTorch's own function. It is private to PyTorch (``torch.distributed.tensor.experimental``) and may be gone in the next
version: where it is, the strategy is refused with what is missing.
"""

from __future__ import annotations

import warnings
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from context_parallel.grid import joined
from context_parallel.kernel import Result
from context_parallel.shards import token_bytes
from context_parallel.ways import Setting, Way
from masks.column_mask import BLOCK
from masks.convert.flex import to_mask_mod


def torch_lacks() -> str | None:
    """What this torch does not have of it, or None."""
    try:
        from torch.distributed.tensor.experimental._context_parallel import _HeadTailLoadBalancer, flex_cp_allgather
        from torch.distributed.tensor.experimental._context_parallel._attention import _create_cp_block_mask
    except ImportError as error:
        return f"torch {torch.__version__} has no context parallelism for FlexAttention ({error})"
    del _HeadTailLoadBalancer, flex_cp_allgather, _create_cp_block_mask
    return None


class FlexCP(Way):
    """FlexAttention over the ranks of a group, by PyTorch."""

    separable = False

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._block_masks: dict[tuple[int, int, torch.device], Any] = {}

    def refusal(self, q: Tensor, k: Tensor, v: Tensor) -> str | None:
        """A torch without it, lengths and placements it does not know, gradients on a CPU."""
        plan, ranks = self.setting.plan, self.setting.plan.ranks
        if (reason := torch_lacks()) is not None:
            return f"strategy 'flex_cp': {reason}"
        step = 2 * ranks * BLOCK
        if plan.grid.seqlen % step:
            return f"strategy 'flex_cp' with {ranks} ranks takes lengths that are a multiple of {step}, not {plan.grid.seqlen}"
        half = plan.grid.seqlen // (2 * ranks)
        for rank in range(ranks):
            dealt = [(start * half, (start + 1) * half) for start in sorted((rank, 2 * ranks - 1 - rank))]
            if joined(plan.rows(rank)) != joined(dealt):
                return "strategy 'flex_cp' has rows of its own, head and tail; allowed: no placement, no chunk of one's own"
        if q.device.type != "cuda" and torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
            return "strategy 'flex_cp': FlexAttention has no backward pass on a CPU; allowed there: torch.no_grad()"
        return None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> Result:
        """As PyTorch does it; of the options only the scale means something to FlexAttention."""
        from torch.distributed.tensor.experimental._context_parallel import flex_cp_allgather

        q, k, v = (x.transpose(1, 2).contiguous() for x in (q, k, v))
        k, v = flex_cp_allgather(k, v, 2, self._mesh.get_group().group_name)
        kind: dict[str, Any] = {"scale": options.get("scale"), "enable_gqa": q.shape[1] != k.shape[1]}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # uncompiled, on a CPU, it is for testing, and it says so
            out, lse = _flex(q.device)(q, k, v, block_mask=self._block_mask(q), return_lse=True, **kind)
        return out.transpose(1, 2).contiguous(), lse

    def parts(self) -> list[int | str | None]:
        """None: its block mask is PyTorch's."""
        return []

    def received(self, q: Tensor, k: Tensor) -> list[int]:
        """Everything from everyone."""
        plan = self.setting.plan
        return [plan.grid.seqlen // plan.ranks * (plan.ranks - 1) * token_bytes(k)] * plan.ranks

    @cached_property
    def _mesh(self) -> DeviceMesh:
        group = self.setting.group
        assert group.process_group is not None
        return DeviceMesh.from_group(group.process_group, group.device.type)

    def _block_mask(self, q: Tensor) -> Any:
        """PyTorch's block mask of this rank, made once a shape."""
        from torch.distributed.tensor.experimental._context_parallel import _HeadTailLoadBalancer
        from torch.distributed.tensor.experimental._context_parallel._attention import _create_cp_block_mask

        mask, plan = self.setting.mask, self.setting.plan
        key = (q.shape[0], q.shape[1], q.device)
        if key not in self._block_masks:
            balancer = _HeadTailLoadBalancer(plan.grid.seqlen, plan.ranks, q.device)
            shape = (mask.batch, 1 if mask.heads == 1 else q.shape[1], plan.grid.seqlen, plan.grid.seqlen)
            mask_mod = to_mask_mod(mask.to(q.device), q.shape[1])
            self._block_masks[key] = _create_cp_block_mask(mask_mod, *shape, self._mesh, load_balancer=balancer)
        return self._block_masks[key]


def _flex(device: torch.device) -> Any:
    """FlexAttention; compiled where that is how it is meant to run."""
    from torch.nn.attention.flex_attention import flex_attention

    if device.type != "cuda":
        return flex_attention
    if not _COMPILED:
        _COMPILED.append(torch.compile(flex_attention, dynamic=False))
    return _COMPILED[0]


_COMPILED: list[Any] = []
