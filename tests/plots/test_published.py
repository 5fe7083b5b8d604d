"""Published figures: the committed files hold what they should, and nothing in another form gets in."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from plots.published import COLUMNS, FOLDER, Published, PublishedError, read_published, read_published_file

PROBLEM = ("kernel", "causal", "forward", "8192", "16", "32", "128", "bfloat16")
GOOD = dict(zip(COLUMNS, ("a table", "some GPU", "tile128", "", *PROBLEM, "610.8", "14.626", "0.5001", "0.5078"), strict=True))


def write(path: Path, *rows: dict[str, str], header: tuple[str, ...] = COLUMNS) -> Path:
    lines = [",".join(header), *(",".join(row.values()) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_the_committed_files_are_whole() -> None:
    figures = read_published()
    assert {path.name for path in FOLDER.glob("*.csv")} == {"flash_attention_3.csv", "flashmask.csv", "peers_h200.csv"}
    assert Counter(figure.gpu for figure in figures) == {"NVIDIA H100 SXM5": 96, "Hopper, not named": 144, "NVIDIA H200": 426}
    assert all(figure.source and figure.kernel for figure in figures)
    assert {figure.convention for figure in figures if figure.gpu == "NVIDIA H100 SXM5"} == {"causal_halved"}


def test_figures_of_each_source_are_the_published_ones() -> None:
    found = {(f.gpu, f.kernel, f.mask, f.pass_, f.seqlen, f.head_dim): f.tflops for f in read_published()}
    assert found["NVIDIA H100 SXM5", "flash_attn_3", "full", "forward", 16384, 256] == 756
    assert found["NVIDIA H100 SXM5", "cudnn", "causal", "forward", 512, 64] == 225
    assert found["Hopper, not named", "flashmask_v3", "document", "backward", 8192, 128] == 417
    assert found["NVIDIA H200", "flashmask4_official", "causal", "backward", 8192, 128] == 568.1


def test_flawed_masks_say_so_in_every_row() -> None:
    flashmask = read_published_file(FOLDER / "flashmask.csv")
    flawed = {figure.mask for figure in flashmask if figure.note}
    assert flawed == {"document", "random_eviction"}
    assert all(bool(figure.note) == (figure.mask in flawed) for figure in flashmask)


def test_a_good_line_is_read(tmp_path: Path) -> None:
    short = GOOD | {"ms": "", "density": "", "tile_density": "", "seqlen": "4096"}
    write(tmp_path / "a.csv", GOOD, short)
    first, second = read_published(tmp_path)
    assert isinstance(first, Published) and (first.tflops, first.ms, first.pass_) == (610.8, 14.626, "forward")
    assert second.ms is None and second.tile_density is None


BAD = [
    ({"convention": "exact"}, "line 2: convention is 'exact'; allowed: tile128, causal_halved"),
    ({"mask": "diagonal"}, "mask is 'diagonal'; allowed: full"),
    ({"pass": "both"}, "pass is 'both'"),
    ({"dtype": "bf16"}, "dtype is 'bf16'"),
    ({"source": ""}, "source is empty"),
    ({"gpu": " "}, "gpu is empty"),
    ({"seqlen": "8192.0"}, "seqlen is '8192.0'; expected a whole number"),
    ({"batch": "0"}, "batch is '0'"),
    ({"heads": "-1"}, "heads is '-1'"),
    ({"tflops": ""}, "tflops is ''; expected a number above 0"),
    ({"tflops": "nan"}, "tflops is 'nan'"),
    ({"ms": "fast"}, "ms is 'fast'"),
    ({"ms": "inf"}, "ms is 'inf'"),
    ({"density": "1.5"}, "density is 1.5; at most 1"),
    ({"tflops": "680.8"}, "tflops is 680.8, but ms and tile_density make 610"),
]


@pytest.mark.parametrize(("change", "reason"), BAD)
def test_a_bad_line_is_refused_by_name(change: dict[str, str], reason: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", GOOD | change)
    with pytest.raises(PublishedError, match="a.csv") as error:
        read_published_file(path)
    assert reason in str(error.value)


def test_other_columns_short_lines_and_repeated_figures_are_refused(tmp_path: Path) -> None:
    reordered = write(tmp_path / "reordered.csv", header=(*COLUMNS[1:], COLUMNS[0]))
    with pytest.raises(PublishedError, match="has the columns gpu"):
        read_published_file(reordered)
    empty = tmp_path / "empty.csv"
    empty.touch()
    with pytest.raises(PublishedError, match="has the columns none"):
        read_published_file(empty)
    with pytest.raises(PublishedError, match="line 2: 15 values, expected 16"):
        read_published_file(write(tmp_path / "short.csv", {name: GOOD[name] for name in COLUMNS[1:]}))
    again = GOOD | {"tflops": "611", "note": "measured again"}
    with pytest.raises(PublishedError, match="line 3: the figure of line 2 again"):
        read_published_file(write(tmp_path / "twice.csv", GOOD, again))
