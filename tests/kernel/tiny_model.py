"""A transformer small enough for a test, and 200 steps of its life."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


class Block(nn.Module):
    """Attention and MLP, heads of 128, grouped keys and values."""

    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv = nn.Linear(width, 128 * (heads + 2 * kv_heads), bias=False)
        self.out = nn.Linear(128 * heads, width, bias=False)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor, attend: Attend) -> Tensor:
        """``[B, S, width]`` to the same."""
        q, k, v = self.qkv(self.norms[0](x)).unflatten(2, (-1, 128)).split((self.heads, self.kv_heads, self.kv_heads), dim=2)
        x = x + self.out(attend(q, k, v).flatten(2))
        return x + self.mlp(self.norms[1](x))


class Model(nn.Module):
    """Two blocks that learn to tell the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, 256)
        self.blocks = nn.ModuleList(Block(256, 4, 2) for _ in range(2))
        self.head = nn.Linear(256, 64)

    def forward(self, tokens: Tensor, attend: Attend, recompute: bool) -> Tensor:
        """Mean cross entropy of the next token."""
        x = self.embed(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, attend, use_reentrant=False) if recompute else block(x, attend)
        return F.cross_entropy(self.head(x[:, :-1]).float().flatten(0, 1), tokens[:, 1:].flatten())


def tokens_of(length: int, generator: torch.Generator, device: str) -> Tensor:
    """``[1, length]``. Stretches of 64 take theirs from one quarter of the 64: which one is learned from those before."""
    kind = torch.randint(0, 4, (length // 64, 1), generator=generator, device=device)
    return (16 * kind + torch.randint(0, 16, (length // 64, 64), generator=generator, device=device)).reshape(1, length)


def train(
    attend: Attend,
    steps: int,
    *,
    length: int = 4096,
    device: str = "cuda",
    dtype: torch.dtype = torch.bfloat16,
    seeds: tuple[int, ...] = (1,),
    recompute: bool = False,
    wrap: Callable[[nn.Module], nn.Module] = lambda model: model,
) -> list[float]:
    """The losses of that many steps on a sequence a seed; ``wrap``: compiled, distributed, or as it is."""
    torch.manual_seed(0)
    model = wrap(Model().to(device, dtype))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generators = [torch.Generator(device).manual_seed(seed) for seed in seeds]
    losses = []
    for _ in range(steps):
        tokens = torch.cat([tokens_of(length, generator, device) for generator in generators])
        loss = model(tokens, attend, recompute)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses
