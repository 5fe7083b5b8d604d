"""Train a tiny Llama on packed documents, once with FlashMask-3 and once with SDPA, and compare the losses.

It shows that ``register()`` and one name are all that a Transformers model needs, and that packed documents do not see each
other: SDPA gets a dense block-diagonal mask from Transformers, FlashMask-3 the same documents in O(N) memory. Same data, same
seed, so the losses agree up to rounding. The data are made up: every document counts in steps of its own, which its first two
tokens tell. Needs ``pip install 'transformers>=5.4'``; half a minute on a CPU.

    python -m examples.packed_documents
"""

from __future__ import annotations

import random

import torch
from transformers import DataCollatorWithFlattening, LlamaConfig, LlamaForCausalLM

from fm3_kernel.transformers import NAME, register

VOCABULARY = 64
STEPS = 60
LARGEST_DIFFERENCE = 1e-3
"""Rounding grows a little with every step of training; a document that sees another one is far beyond this."""


def documents(rng: random.Random) -> list[dict[str, list[int]]]:
    """A batch for the collator: documents of 8 to 60 tokens, about 300 in all."""
    batch = []
    for _ in range(9):
        first, step, length = rng.randrange(VOCABULARY), rng.randrange(1, 8), rng.randint(8, 60)
        batch.append({"input_ids": [(first + step * i) % VOCABULARY for i in range(length)]})
    return batch


def losses(implementation: str) -> list[float]:
    """Losses of the training steps with one attention implementation."""
    torch.manual_seed(0)
    rng = random.Random(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_implementation=implementation,
    )
    model = LlamaForCausalLM(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    # One row of all tokens, with position_ids that restart at every document and no loss across a border.
    collate = DataCollatorWithFlattening(return_tensors="pt")
    history = []
    for _ in range(STEPS):
        # Without use_cache=False Transformers does not look for documents when it makes SDPA's mask.
        loss = model(**collate(documents(rng)), use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        history.append(loss.item())
    return history


def main() -> None:
    """Print both losses side by side; exit with an error where they differ."""
    register()
    ours, sdpa = losses(NAME), losses("sdpa")
    print(f"{'step':>4}  {NAME:>10}  {'sdpa':>10}  {'difference':>10}")
    for step, (a, b) in enumerate(zip(ours, sdpa, strict=True)):
        if step % 10 == 0 or step == STEPS - 1:
            print(f"{step:>4}  {a:>10.6f}  {b:>10.6f}  {abs(a - b):>10.1e}")
    largest = max(abs(a - b) for a, b in zip(ours, sdpa, strict=True))
    print(f"largest difference of {STEPS} steps: {largest:.1e}")
    if largest > LARGEST_DIFFERENCE:
        raise SystemExit(f"the losses differ by {largest:.1e}; allowed: {LARGEST_DIFFERENCE:.0e}")


if __name__ == "__main__":
    main()
