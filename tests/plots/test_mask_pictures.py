"""Pictures of masks: every pixel against the dense oracle, tiles against a count by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from masks.column_mask import BLOCK, ColumnMask
from masks.dense import dense
from masks.families import FAMILIES
from masks.tiles import FULL, PARTIAL, SKIPPED
from plots import files, mask
from plots.captions import FigureError
from plots.gallery import TILES, gallery, small_mask

CAUSAL = ColumnMask(causal=True, seqlen_q=96, seqlen_k=96)


def test_causal_tiles_are_what_they_are() -> None:
    seen, classes = mask.elements(CAUSAL, 32)
    assert (seen == np.tril(np.ones((96, 96), dtype=bool))).all()
    assert classes.tolist() == [[PARTIAL, SKIPPED, SKIPPED], [FULL, PARTIAL, SKIPPED], [FULL, FULL, PARTIAL]]
    line = mask.data({"causal": CAUSAL}, 32).iloc[0]
    assert (line["skipped"], line["partial"], line["full"]) == (3, 3, 3)
    assert line["density"] == pytest.approx(96 * 97 / 2 / 96**2)
    assert line["tile_density"] == pytest.approx(6 / 9)


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "block_sparse"])
def test_visible_pixels_are_the_dense_mask_and_impossible_colours_never_appear(name: str) -> None:
    small = small_mask(name)
    seen, classes = mask.elements(small, 32)
    oracle = dense(small)[0, 0].numpy()
    pixels = mask.picture(seen, classes, 32)
    visible = (pixels == (0x00, 0x72, 0xB2)).all(-1) | (pixels == (0xE6, 0x9F, 0x00)).all(-1)
    assert (visible == oracle).all()
    assert not (pixels == (255, 0, 0)).all(-1).any()


def test_edges_that_are_no_whole_tile_and_unequal_sides() -> None:
    uneven = ColumnMask(causal=True, seqlen_q=50, seqlen_k=70)
    seen, classes = mask.elements(uneven, 32)
    assert seen.shape == (50, 70)
    assert classes.shape == (2, 3)
    assert mask.picture(seen, classes, 32).shape == (50, 70, 3)


def test_a_block_mask_has_tiles_of_its_own() -> None:
    sparse = small_mask("block_sparse")
    assert mask.tile_of(sparse, 32) == BLOCK
    assert mask.data({"block_sparse": sparse}, 32).iloc[0]["tile"] == BLOCK
    _, classes = mask.elements(sparse, 32)
    assert classes.shape == (TILES, TILES)


@pytest.mark.parametrize("side", [0, mask.LARGEST + 1])
def test_what_cannot_be_drawn_is_refused(side: int) -> None:
    with pytest.raises(FigureError, match="cannot be drawn"):
        mask.elements(ColumnMask(seqlen_q=side, seqlen_k=side))


def test_a_head_that_is_not_there_is_refused() -> None:
    with pytest.raises(FigureError, match="head 3"):
        mask.elements(CAUSAL, 32, head=3)


def test_each_head_has_its_own_picture() -> None:
    lts = torch.tensor([[[64] * 64, [32] * 64]], dtype=torch.int32)
    two = ColumnMask(lts=lts, causal=True, seqlen_q=64, seqlen_k=64)
    assert mask.elements(two, 32, head=0)[0].sum() > mask.elements(two, 32, head=1)[0].sum()


def test_the_gallery_shows_every_family_in_order() -> None:
    drawn = gallery()
    assert list(drawn.frame["mask"]) == list(FAMILIES)
    assert (drawn.frame[["skipped", "partial", "full"]].sum(axis=1) == TILES * TILES).all()
    figure = drawn.figure()
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert [title for title in titles if title] == [name.replace("_", " ") for name in FAMILIES]


def test_one_mask_draws_the_same_twice() -> None:
    first, second = (files.to_bytes(mask.draw(CAUSAL, tile=32, title="causal"), "png") for _ in range(2))
    assert first == second
