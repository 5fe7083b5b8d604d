"""What the FlashMask-3 paper claims, as data: who against whom, where, and by how much.

Nothing is judged here (``harness.claims.judge``). Every bound is a ratio of speeds unless the unit is a share.
"""

from __future__ import annotations

from dataclasses import dataclass

from masks.families import FAMILIES

SOURCE = "FlashMask-3's paper"
MASKS = tuple(name for name in FAMILIES if name != "block_sparse")
"""The twelve masks of its tables."""
LENGTHS = (4096, 8192, 32768, 131072)
"""Where 4K to 128K is looked at: what ``sweep=single_gpu`` measures."""
DEGREES = (4, 8, 16, 32)
TOKENS_A_DEVICE = 8192

Case = tuple[str, int, int]
"""Mask, tokens, ranks that share the sequence."""

ANCHOR = "sdpa_cudnn"
"""Its full attention is what two sides that did not run together are both compared with."""


@dataclass(frozen=True)
class Who:
    """One side of a comparison.

    Args:
        kernel: name in rows; ``strategy``: of context parallelism, in rows.
        published: name in ``results/published`` of figures measured beside cuDNN.
        through: (name, name of ``published`` in the same source): figures without a cuDNN of their own, compared with
            ``published`` inside that source.
        never: masks that it cannot compute, so that no figure is missing.
        also: names in rows of the same with other options; the fastest stands for all.
    """

    kernel: str
    strategy: str | None = None
    published: str | None = None
    through: tuple[str, str] | None = None
    never: tuple[str, ...] = ()
    also: tuple[str, ...] = ()


@dataclass(frozen=True)
class Claim:
    """One claim of the paper.

    Args:
        low, high: the ends of the range that it states. unit: how the paper writes it: ``gain`` (+45%), ``times`` (1.80
            times) or ``share`` (31%).
        gpu: where the paper measured. rival: whom this project's kernel is compared with; None: nothing to compare.
        untold: why no row can answer it, whatever is measured; None: rows can.
        caveat: what a comparison with the rival's rows is not. published_caveat: with its published figures.
    """

    name: str
    text: str
    low: float
    high: float
    unit: str
    gpu: str
    rival: Who | None = None
    untold: str | None = None
    caveat: str = ""
    published_caveat: str = ""

    @property
    def ours(self) -> Who:
        """This project's side."""
        return Who("fm3", "fm3" if self.shared else None)

    @property
    def shared(self) -> bool:
        """Whether ranks share the sequence."""
        return self.rival is not None and self.rival.strategy is not None

    @property
    def cases(self) -> tuple[Case, ...]:
        """The cases that the claim is about and the rival can compute."""
        masks = [mask for mask in MASKS if self.rival is None or mask not in self.rival.never]
        if self.shared:
            return tuple((mask, TOKENS_A_DEVICE * degree, degree) for mask in masks for degree in DEGREES)
        return tuple((mask, length, 1) for mask in masks for length in LENGTHS)


_ONE = "One GPU, 12 masks, 4K to 128K tokens, forward and backward: over"
_MANY = "4 to 32 GPUs, 8K tokens on each, forward and backward: over"
_MODEL = "118B-A14B mixture of experts, 128K tokens, 128 GPUs, over Dual Chunk all-gather:"
_H100 = "NVIDIA H100"

_NOT_RECORDED = "no measured rows of several GPUs, which hold how much of the communication is hidden"
_NO_MODEL = "nothing here trains this model on that many GPUs"
_NOT_MEGATRON = "the rival is what is published about Megatron-Core, implemented here on this project's kernel; not its code"

_FFA = "MagiAttention is its kernel for one GPU"

_FLASHMASK = Who("flashmask", published="flashmask3_official", through=("flashmask_v1", "flashmask_v3"))
_MAGI = Who("magi", published="magi_ffa", never=("random_eviction",))

CLAIMS = (
    Claim(
        *("flashmask", f"{_ONE} FlashMask", 1.45, 2.41, "gain", _H100, _FLASHMASK),
        caveat="FlashMask is the kernel of its first paper, implemented here (`flashmask`); not its project's code",
        published_caveat="FlashMask is its first version, from its project's table: 8K and 32K, a Hopper GPU that is not named",
    ),
    Claim("flex", f"{_ONE} FlexAttention", 1.34, 1.71, "gain", _H100, Who("flex", published="flex", also=("flex_tuned",))),
    Claim(
        *("magi", f"{_ONE} MagiAttention", 1.02, 1.44, "gain", _H100, _MAGI),
        caveat=_FFA,
        published_caveat=_FFA,
    ),
    Claim(
        *("overlap", "4 to 32 GPUs, 8K tokens on each: communication hidden behind computation", 0.31, 0.75, "share", _H100),
        untold=_NOT_RECORDED,
    ),
    Claim("ring", f"{_MANY} Megatron-Core's ring", 1.80, 3.71, "times", _H100, Who("fm3", "ring"), caveat=_NOT_MEGATRON),
    Claim(
        *("all_gather", f"{_MANY} Megatron-Core's all-gather", 1.71, 2.92, "times", _H100, Who("fm3", "all_gather")),
        caveat=_NOT_MEGATRON,
    ),
    Claim("magi_shared", f"{_MANY} MagiAttention", 1.09, 1.46, "times", _H100, Who("magi", "magi")),
    Claim("model", f"{_MODEL} end to end", 1.073, 1.110, "gain", _H100, untold=_NO_MODEL),
    Claim("model_attention", f"{_MODEL} attention", 1.245, 1.449, "gain", _H100, untold=_NO_MODEL),
)
