"""Documents: how a packed sequence is divided. The papers' lists, a seeded sampler of real lengths, the user's own.

A list of documents says nothing about what may see what; that is ``masks.families``. Files of lengths are read by
``harness.lengths``. All randomness is ``random.Random(seed).random()``, which Python keeps stable across versions and
platforms, and no library logarithm takes part, so a seed means the same documents everywhere.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path

from masks.column_mask import MaskError
from masks.paper_lists import PAPER_LISTS
from masks.spelling import allowed_names

HISTOGRAM = Path(__file__).with_name("data") / "doc_length_histogram.csv"
"""Token lengths of 13.5 million training documents; see ``masks/data/README.md``."""

SMALLEST_PAPER_LENGTH = 64
"""Below this, scaling a published list leaves documents of a few tokens: refused."""

PREFIX_SHARE = (0.1, 0.5)
"""A drawn prefix is this share of its document, uniform."""


@dataclass(frozen=True)
class Document:
    """One document of a packed sequence.

    Args:
        length: tokens, at least 1.
        prefix: leading tokens that see each other in both directions (prefix_lm_document), 0 to ``length``.
        flag: its columns are hidden from its own rows (qk_sparse).

    Raises:
        MaskError: a length below 1, or a prefix outside the document.
    """

    length: int
    prefix: int
    flag: bool

    def __post_init__(self) -> None:
        _integer("document length", self.length, 1)
        _integer("prefix", self.prefix, 0)
        if self.prefix > self.length:
            raise MaskError(f"prefix is {self.prefix}; allowed: 0 to the document's length, {self.length}")


Documents = tuple[Document, ...]


def paper_documents(seqlen: int, variant: str = "a") -> Documents:
    """The benchmark's list for ``seqlen`` tokens; for other lengths the nearest list, scaled.

    Lengths and prefixes are multiplied by ``seqlen / S0`` and floored, documents of length zero are dropped with their
    flags, and the last one takes the remainder. Halfway between two lists the shorter one is taken.

    Args:
        seqlen: tokens, at least 64.
        variant: "a" to "e".

    Raises:
        MaskError: unknown variant, or a sequence too short to scale to.
    """
    _integer("seqlen", seqlen, 1)
    if seqlen < SMALLEST_PAPER_LENGTH:
        raise MaskError(
            f"seqlen is {seqlen}; the papers' document lists need at least {SMALLEST_PAPER_LENGTH} tokens "
            "(use sampled_documents or documents_from_lengths for less)"
        )
    base = min(PAPER_LISTS, key=lambda length: abs(length - seqlen))
    if variant not in PAPER_LISTS[base]:
        raise MaskError(f"variant is {variant!r}; {allowed_names(variant, PAPER_LISTS[base])}")
    pairs, flags = PAPER_LISTS[base][variant]
    scaled = [
        (prefix * seqlen // base, length * seqlen // base, flag == "1")
        for (prefix, length), flag in zip(pairs, flags, strict=True)
    ]
    kept = [entry for entry in scaled if entry[1] > 0]
    prefix, _, flag = kept[-1]
    kept[-1] = (prefix, seqlen - sum(entry[1] for entry in kept[:-1]), flag)
    return tuple(Document(length, min(prefix, length), flag) for prefix, length, flag in kept)


def documents_from_lengths(
    lengths: Sequence[int],
    *,
    prefixes: Sequence[int] | None = None,
    flags: Sequence[bool] | None = None,
    seed: int = 0,
) -> Documents:
    """Documents of the given lengths, in the given order.

    Args:
        lengths: tokens, each at least 1.
        prefixes: one a document; None: ``floor(length * u)``, ``u`` uniform in [0.1, 0.5], drawn with ``seed``.
        flags: one a document; None: the second and the second-to-last document.
        seed: integer >= 0, only used for prefixes.

    Raises:
        MaskError: no document, a length below 1, a prefix longer than its document, or lists of different lengths.
    """
    if not len(lengths):
        raise MaskError("no document lengths given; at least one is needed")
    for name, values in (("prefixes", prefixes), ("flags", flags)):
        if values is not None and len(values) != len(lengths):
            raise MaskError(f"{len(values)} {name} for {len(lengths)} documents; give one a document")
    for index, length in enumerate(lengths):
        _integer(f"length of document {index}", length, 1)
    if prefixes is None:
        rng = random_source(seed)
        low, high = PREFIX_SHARE
        prefixes = [int(length * (low + (high - low) * rng.random())) for length in lengths]
    if flags is None:
        flagged = {1, len(lengths) - 2} if len(lengths) > 1 else set()
        flags = [index in flagged for index in range(len(lengths))]
    return tuple(Document(length, prefix, bool(flag)) for length, prefix, flag in zip(lengths, prefixes, flags, strict=True))


def sampled_documents(seqlen: int, seed: int, cut: bool = False) -> Documents:
    """A pack of ``seqlen`` tokens drawn from the histogram of real document lengths.

    Documents are drawn by count, the length within its bin with weight 1/length (log-uniform, lower edge at least 1);
    the last one is truncated to fit. Prefixes and flags as in :func:`documents_from_lengths`.

    Args:
        seqlen: tokens, at least 1.
        seed: integer >= 0.
        cut: documents at most a quarter of the pack, longer ones are cut to that.
    """
    _integer("seqlen", seqlen, 1)
    longest = max(1, seqlen // 4) if cut else seqlen
    rng = random_source(seed, "lengths")  # the plain stream of the seed draws the prefixes
    lengths: list[int] = []
    left = seqlen
    while left:
        length = min(_draw_length(rng), longest, left)
        lengths.append(length)
        left -= length
    return documents_from_lengths(lengths, seed=seed)


def random_source(seed: int, stream: str | None = None) -> random.Random:
    """The generator of one case; ``stream`` names an independent second one for the same seed.

    Raises:
        MaskError: the seed is not an integer >= 0 (Python would take -1 and 1 for the same seed).
    """
    _integer("seed", seed, 0)
    return random.Random(seed if stream is None else f"{stream}:{seed}")


@cache
def _histogram() -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]]:
    """Bins (first, last token count) and the running number of documents."""
    with HISTOGRAM.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    bins = tuple((max(1, int(row["min_tokens"])), int(row["max_tokens"])) for row in rows)
    return bins, tuple(accumulate(int(row["documents"]) for row in rows))


def _draw_length(rng: random.Random) -> int:
    bins, running = _histogram()
    ticket = rng.random() * running[-1]
    low, high = next(edges for edges, upto in zip(bins, running, strict=True) if ticket < upto)
    while True:  # rejection: a uniform candidate kept with probability low / candidate has weight 1 / candidate
        candidate = low + int(rng.random() * (high - low + 1))
        if rng.random() * candidate < low:
            return candidate


def _integer(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise MaskError(f"{name} is {value!r}; it must be an integer >= {least}")
