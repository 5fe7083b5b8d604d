"""Document lists: the papers', the sampler's, the user's."""

from __future__ import annotations

import csv

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from masks.column_mask import MaskError
from masks.documents import HISTOGRAM, Document, documents_from_lengths, paper_documents, sampled_documents
from masks.paper_lists import PAPER_LISTS

GOLDEN_LENGTHS = [296, 973, 761, 351, 1715]
GOLDEN_PREFIXES = [129, 392, 204, 71, 522]


def test_published_lists_are_whole() -> None:
    assert list(PAPER_LISTS) == [8192, 32768, 131072]
    for length, variants in PAPER_LISTS.items():
        assert list(variants) == list("abcde")
        for variant, (pairs, flags) in variants.items():
            assert sum(size for _, size in pairs) == length
            assert len(flags) == len(pairs)
            assert set(flags) <= {"0", "1"}
            documents = paper_documents(length, variant)
            assert documents == tuple(Document(n, p, f == "1") for (p, n), f in zip(pairs, flags, strict=True))


def test_scaling_by_hand() -> None:
    # 64/8192 = 1/128: 3145, 2203, 2844 -> 24, 17, the rest; prefixes 885, 296, 528 -> 6, 2, 4
    assert paper_documents(64, "a") == (Document(24, 6, False), Document(17, 2, True), Document(23, 4, False))
    # e: 1144, 407, 1709, 1187, 1138, 915, 1692
    assert [d.length for d in paper_documents(64, "e")] == [8, 3, 13, 9, 8, 7, 16]


def test_nearest_list_is_scaled() -> None:
    counts = {8192: 3, 32768: 10, 131072: 11}
    for seqlen, base in ((4096, 8192), (20480, 8192), (20481, 32768), (65536, 32768), (81921, 131072), (2**20, 131072)):
        documents = paper_documents(seqlen, "a")
        assert len(documents) == counts[base]
        assert documents[0].length == PAPER_LISTS[base]["a"][0][0][1] * seqlen // base


@settings(max_examples=200, deadline=None)
@given(seqlen=st.integers(64, 300_000), variant=st.sampled_from("abcde"))
def test_scaled_lists_fill_the_sequence(seqlen: int, variant: str) -> None:
    documents = paper_documents(seqlen, variant)
    assert sum(document.length for document in documents) == seqlen
    assert all(0 <= document.prefix <= document.length for document in documents)


@pytest.mark.parametrize("seqlen", [0, -1, 1, 63, True, 64.0])
def test_short_sequences_are_refused(seqlen: int) -> None:
    with pytest.raises(MaskError, match=f"seqlen is {seqlen}"):
        paper_documents(seqlen)


def test_unknown_variant() -> None:
    with pytest.raises(MaskError, match="variant is 'f'; allowed: a, b, c, d, e"):
        paper_documents(8192, "f")


def test_flags_and_prefixes_of_own_lengths() -> None:
    lengths = [10, 20, 30, 40, 50]
    documents = documents_from_lengths(lengths, seed=3)
    assert [d.flag for d in documents] == [False, True, False, True, False]
    assert [d.length for d in documents] == lengths
    assert documents == documents_from_lengths(lengths, seed=3)
    assert documents != documents_from_lengths(lengths, seed=4)
    assert [d.flag for d in documents_from_lengths([5])] == [False]
    assert [d.flag for d in documents_from_lengths([5, 5])] == [True, True]
    assert [d.flag for d in documents_from_lengths([5, 5, 5])] == [False, True, False]
    given_both = documents_from_lengths([5, 6], prefixes=[5, 0], flags=[True, False])
    assert given_both == (Document(5, 5, True), Document(6, 0, False))


def test_drawn_prefixes_are_a_tenth_to_a_half() -> None:
    shares = [d.prefix / d.length for d in documents_from_lengths([100_000] * 2000, seed=1)]
    assert 0.0999 < min(shares) < 0.11
    assert 0.49 < max(shares) < 0.5
    assert abs(sum(shares) / len(shares) - 0.3) < 0.01


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lengths": []}, "no document lengths"),
        ({"lengths": [3, 0]}, "length of document 1 is 0"),
        ({"lengths": [-4]}, "length of document 0 is -4"),
        ({"lengths": [2.5]}, "length of document 0 is 2.5"),
        ({"lengths": [3], "prefixes": [4]}, "prefix is 4; allowed: 0 to the document's length, 3"),
        ({"lengths": [3], "prefixes": [-1]}, "prefix is -1"),
        ({"lengths": [3, 3], "prefixes": [1]}, "1 prefixes for 2 documents"),
        ({"lengths": [3], "flags": [True, False]}, "2 flags for 1 documents"),
        ({"lengths": [3], "seed": -1}, "seed is -1"),
    ],
)
def test_bad_lengths(arguments: dict, message: str) -> None:
    with pytest.raises(MaskError, match=message):
        documents_from_lengths(**arguments)


@settings(max_examples=60, deadline=None)
@given(seqlen=st.integers(1, 200_000), seed=st.integers(0, 2**40), cut=st.booleans())
def test_samples_fill_the_sequence(seqlen: int, seed: int, cut: bool) -> None:
    documents = sampled_documents(seqlen, seed, cut)
    assert sum(document.length for document in documents) == seqlen
    if cut:
        assert max(document.length for document in documents) <= max(1, seqlen // 4)
    assert documents == sampled_documents(seqlen, seed, cut)


def test_a_seed_means_the_same_documents_everywhere() -> None:
    assert [d.length for d in sampled_documents(4096, 0)] == GOLDEN_LENGTHS
    assert [d.prefix for d in sampled_documents(4096, 0)] == GOLDEN_PREFIXES


def test_samples_follow_the_histogram() -> None:
    packs = [sampled_documents(65536, seed) for seed in range(400)]
    assert 45 < sum(map(len, packs)) / len(packs) < 55  # about 50 documents a pack of 64K
    long = sum(any(d.length >= 32768 for d in pack) for pack in packs) / len(packs)
    assert 0.07 < long < 0.18  # 12%
    whole = [d.length for pack in packs for d in pack[:-1]]  # the last one is truncated
    with HISTOGRAM.open(newline="") as stream:
        bins = [(int(r["min_tokens"]), int(r["max_tokens"]), int(r["documents"])) for r in csv.DictReader(stream)]
    total = sum(count for *_, count in bins)
    for low, high, count in bins[:9]:
        share = sum(low <= length <= high for length in whole) / len(whole)
        assert abs(share - count / total) < 0.012, (low, high)
    # log-uniform within a bin: half of the 201..500 documents lie below the geometric mean of the edges
    inside = [length for length in whole if 201 <= length <= 500]
    assert abs(sum(length < 317 for length in inside) / len(inside) - 0.5) < 0.03


def test_bad_samples() -> None:
    with pytest.raises(MaskError, match="seqlen is 0"):
        sampled_documents(0, 0)
    with pytest.raises(MaskError, match="seed is -1"):
        sampled_documents(10, -1)
