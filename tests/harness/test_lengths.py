"""Length files: every format, every bad value with its line; packing; the command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import harness.lengths
from harness.lengths import LengthRow, LengthsError, Policy, file_lengths, main, pack, read_lengths
from masks.documents import Document
from masks.families import build_mask

SHIPPED = Path(harness.lengths.__file__).parents[1] / "masks" / "data" / "cpython_stdlib_lengths.csv"


def save(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_bytes(text.encode())
    return path


GOLDEN_ORDER = [4, 6, 8, 5, 7, 9]

LENGTHS = [7, 1, 123_456]
ROWS = [LengthRow(n) for n in LENGTHS]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.txt", "7\n1\n123456"),
        ("a.txt", "\ufeff7\r\n 1 \r\n123456\r\n\r\n"),
        ("a.csv", "length\n7\n1\n123456\n"),
        ("a.csv", "\ufefftokens\r\n7\r\n1\r\n123456\r\n\r\n"),
        ("a.CSV", 'name,length\n"a,b",7\nc,1\n"two\nlines",123456\n'),
        ("a.jsonl", "7\n1\n123456\n"),
        ("a.jsonl", '{"length": 7}\n{"length": 1, "x": null}\n{"length": 123456}\n'),
        ("a.jsonl", '{"tokens": 7}\n{"tokens": 1}\n{"tokens": 123456}'),
    ],
)
def test_formats(tmp_path: Path, name: str, text: str) -> None:
    assert read_lengths(save(tmp_path, name, text)) == ROWS
    assert read_lengths(str(tmp_path / name)) == ROWS


def test_parquet(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pandas.DataFrame({"length": LENGTHS, "other": [1, 2, 3]}).to_parquet(path)
    assert read_lengths(path) == ROWS
    pandas.DataFrame({"n": [5, 6], "prefix": [2, 6], "flag": [True, False], "o": ["x", "y"]}).to_parquet(path)
    assert read_lengths(path, "n") == [LengthRow(5, 2, True), LengthRow(6, 6, False)]
    pandas.DataFrame({"length": [5, None, 7]}).to_parquet(path)
    with pytest.raises(LengthsError, match=r"a.parquet: row 1: length is 5.0; it must be an integer"):
        read_lengths(path)
    pandas.DataFrame({"length": pandas.array([5, None], dtype="Int64")}).to_parquet(path)
    with pytest.raises(LengthsError, match=r"a.parquet: row 2: length is missing"):
        read_lengths(path)
    with pytest.raises(LengthsError, match=r"no column 'lenght'; allowed: length \(did you mean 'length'\?\)"):
        read_lengths(path, "lenght")
    path.write_bytes(b"not parquet")
    with pytest.raises(LengthsError, match=r"a\.parquet: not a readable Parquet file"):
        read_lengths(path)


def test_prefix_and_flag_columns(tmp_path: Path) -> None:
    wanted = [LengthRow(5, 0, True), LengthRow(6, 6, False)]
    assert read_lengths(save(tmp_path, "a.csv", "flag,size,prefix\n1,5,0\nFalse,6,6\n")) == wanted
    text = "".join(json.dumps({"length": r.length, "prefix": r.prefix, "flag": r.flag}) + "\n" for r in wanted)
    assert read_lengths(save(tmp_path, "a.jsonl", text)) == wanted
    assert read_lengths(save(tmp_path, "b.csv", "prefix\n5\n"), "prefix") == [LengthRow(5)]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", "3\n-4\n", "a.txt:2: length is -4, negative; it must be an integer from 1 to"),
        ("a.txt", "0\n", "a.txt:1: length is 0, zero"),
        ("a.txt", "3\n2.5\n", "a.txt:2: length is '2.5'; it must be an integer"),
        ("a.txt", "3\n4.0\n", "a.txt:2: length is '4.0'"),
        ("a.txt", "3\n\n5\n", "a.txt:2: length is empty"),
        ("a.txt", "\n5\n", "a.txt:1: length is empty"),
        ("a.txt", "3\nfour\n", "a.txt:2: length is 'four'"),
        ("a.txt", "1_000\n", "length is '1_000'"),
        ("a.txt", "٣\n", "length is '٣'"),
        ("a.txt", "2147483648\n", "length is 2147483648; it must be an integer from 1 to 2147483647"),
        ("a.txt", "9" * 5000, "it must be an integer from 1 to 2147483647"),
        ("a.txt", "", "a.txt: holds no lengths"),
        ("a.txt", " \n\n", "a.txt: holds no lengths"),
        ("a.csv", "", "a.csv: holds no lengths"),
        ("a.csv", "length\n", "a.csv: holds no lengths"),
        ("a.csv", "3\n4\n", "a.csv:1: the first line must name the columns, found '3'"),
        ("a.csv", "length,length\n4,4\n", "two columns of the same name"),
        ("a.csv", "length,x\n4,1\n,2\n", "a.csv:3: length is empty"),
        ("a.csv", "x,length\n4,1\n4\n", "a.csv:3: length is missing"),
        ("a.csv", "length\n4\n\n5\n", "a.csv:3: empty line"),
        ("a.csv", "length\n4,5\n", "a.csv:2: 2 cells, the first line names 1 columns"),
        ("a.csv", "a,b\n4,5\n", "no column 'length'; allowed: a, b"),
        ("a.csv", "lengths,b\n4,5\n", r"no column 'length'; allowed: lengths, b \(did you mean 'lengths'\?\)"),
        ("a.csv", "length,prefix\n4,5\n", "a.csv:2: prefix is 5; it must be an integer from 0 to 4"),
        ("a.csv", "length,prefix\n4,\n", "a.csv:2: prefix is empty"),
        ("a.csv", "length,prefix\n4,-1\n", "a.csv:2: prefix is -1, negative"),
        ("a.csv", "length,flag\n4,2\n", "a.csv:2: flag is '2'; allowed: 0, 1, false, true"),
        ("a.jsonl", '{"length": 4}\n{"length": 2.5}\n', "a.jsonl:2: length is 2.5"),
        ("a.jsonl", '{"length": 4}\n{"length": null}\n', "a.jsonl:2: length is missing"),
        ("a.jsonl", '{"length": 4}\n{"x": 1}\n', "a.jsonl:2: length is missing"),
        ("a.jsonl", '{"length": true}\n', "a.jsonl:1: length is True"),
        ("a.jsonl", '{"length": NaN}\n', "a.jsonl:1: length is nan"),
        ("a.jsonl", '{"length": [4]}\n', r"a.jsonl:1: length is \[4\]"),
        ("a.jsonl", '{"length": 4}\n{"length": 4, "prefix": 1}\n', "a.jsonl:2: prefix is given here but not in the first line"),
        ("a.jsonl", '{"length": 4}\n{"length":\n', "a.jsonl:2: not JSON"),
        ("a.jsonl", "4\n\n5\n", "a.jsonl:2: empty line"),
        ("a.jsonl", "9" * 5000, "a.jsonl:1: not JSON"),
        ("a.jsonl", "", "a.jsonl: holds no lengths"),
        (
            "a.csvs",
            "length\n4\n",
            r"a.csvs: cannot read files with .csvs; allowed: .txt, .csv, .jsonl, .parquet \(did you mean '.csv'",
        ),
        ("lengths", "4\n", "cannot read files with no ending"),
    ],
)
def test_bad_files(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(LengthsError, match=message):
        read_lengths(save(tmp_path, name, text))


def test_files_that_are_no_text(tmp_path: Path) -> None:
    with pytest.raises(LengthsError, match=r"nothing.txt: no such file"):
        read_lengths(tmp_path / "nothing.txt")
    (tmp_path / "a.txt").write_bytes(b"3\n\xff\xfe\n")
    with pytest.raises(LengthsError, match=r"a\.txt: not UTF-8 text"):
        read_lengths(tmp_path / "a.txt")
    with pytest.raises(LengthsError, match="no column 'n'; allowed: length"):
        read_lengths(save(tmp_path, "b.txt", "3\n"), "n")


# -- packing ---------------------------------------------------------------------------------------------------------------


def test_in_order_truncates_the_last() -> None:
    rows = [LengthRow(5, 2, True), LengthRow(6, 5, False), LengthRow(7, 1, True)]
    assert pack(rows, 9) == (Document(5, 2, True), Document(4, 4, False))
    assert pack(rows, 18, "in_order") == tuple(Document(r.length, r.prefix, r.flag) for r in rows)
    assert [d.length for d in pack([5, 6, 7], 11)] == [5, 6]


def test_cut_to_a_quarter() -> None:
    documents = pack([LengthRow(50, 30), LengthRow(3, 1), LengthRow(50, 2), LengthRow(50, 0), LengthRow(50, 0)], 40, cut=True)
    assert [(d.length, d.prefix) for d in documents] == [(10, 10), (3, 1), (10, 2), (10, 0), (7, 0)]


def test_shuffle_is_an_order_of_the_file() -> None:
    lengths = list(range(1, 41))
    total = sum(lengths)
    one, same, other = (pack(lengths, total, "shuffle", seed) for seed in (1, 1, 2))
    assert one == same
    assert one != other
    assert sorted(d.length for d in one) == lengths
    assert [d.length for d in one] != lengths
    assert [d.length for d in pack([9, 8, 7, 6, 5, 4], 39, Policy.SHUFFLE, seed=0)] == GOLDEN_ORDER


@settings(max_examples=100, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 50), min_size=1, max_size=20),
    seqlen=st.integers(1, 400),
    policy=st.sampled_from(list(Policy)),
    cut=st.booleans(),
)
def test_a_pack_is_whole_or_refused(lengths: list[int], seqlen: int, policy: Policy, cut: bool) -> None:
    longest = max(1, seqlen // 4) if cut else seqlen
    available = sum(min(n, longest) for n in lengths)
    if available < seqlen:
        with pytest.raises(LengthsError, match=f"my.csv holds {available} tokens.*; seqlen is {seqlen}"):
            pack(lengths, seqlen, policy, cut=cut, name="my.csv")
        return
    documents = pack(lengths, seqlen, policy, cut=cut)
    assert sum(d.length for d in documents) == seqlen
    assert max(d.length for d in documents) <= longest
    build_mask("document", seqlen, documents=documents)


def test_missing_prefixes_are_drawn_by_seed() -> None:
    assert pack([400, 600], 1000, seed=1) == pack([400, 600], 1000, seed=1)
    assert [d.prefix for d in pack([400, 600], 1000, seed=1)] != [d.prefix for d in pack([400, 600], 1000, seed=2)]
    assert [d.flag for d in pack([10] * 5, 50)] == [False, True, False, True, False]


def test_bad_packing() -> None:
    with pytest.raises(LengthsError, match=r"policy 'in-order'; allowed: in_order, shuffle \(did you mean 'in_order'"):
        pack([5], 5, "in-order")
    for seqlen in (0, -1, 2.5, True):
        with pytest.raises(LengthsError, match=f"seqlen is {seqlen}"):
            pack([5], seqlen)
    with pytest.raises(LengthsError, match="holds 0 tokens; seqlen is 5"):
        pack([], 5)


# -- the command -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "code"
    for name, size in (("b.py", 20), ("a/z.py", 10), ("a/test/t.py", 99), ("a-b.py", 30), ("empty.py", 0), ("c.txt", 7)):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)
    (root / "dir.py").mkdir()
    (root / "gone.py").symlink_to(root / "nowhere")
    return root


def test_file_lengths(folder: Path) -> None:
    assert file_lengths(folder, "*.py", ["test"]) == ([30, 10, 20], 1)
    assert file_lengths(folder) == ([30, 99, 10, 20, 7], 1)
    with pytest.raises(LengthsError, match=r"no file named like '\*.rs'"):
        file_lengths(folder, "*.rs")
    with pytest.raises(LengthsError, match="no such folder"):
        file_lengths(folder / "nowhere")


def test_command(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "lengths.csv"
    assert main([str(folder), "--glob", "*.py", "--out", str(out)]) == 0
    assert out.read_text() == "length\n30\n99\n10\n20\n"
    assert [row.length for row in read_lengths(out)] == [30, 99, 10, 20]
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "4 files, 159 bytes (not tokens); 1 empty files left out\n"
    assert main([str(folder / "nowhere")]) == 2
    assert "no such folder" in capsys.readouterr().err
    assert main([str(folder), "--out", str(tmp_path / "no" / "x.csv")]) == 2


def test_command_as_a_process(folder: Path) -> None:
    root = Path(harness.lengths.__file__).parents[1]
    command = [sys.executable, "-m", "harness.lengths", str(folder), "--glob", "*.txt"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "length\n7\n"), done.stderr


def test_shipped_lengths() -> None:
    assert SHIPPED.stat().st_size < 40 * 1024
    rows = read_lengths(SHIPPED)
    assert len(rows) == 794
    assert sum(row.length for row in rows) == 12_563_320
    assert sum(d.length for d in pack(rows, 1 << 20, "shuffle")) == 1 << 20


def test_a_file_larger_than_memory_is_refused_before_it_is_read(tmp_path: Path) -> None:
    from harness.limits import too_long_to_read
    from harness.machine import Machine

    path = tmp_path / "long.csv"
    path.write_text("length\n" + "100\n" * 1000)
    small, large = (
        Machine(gpu=None, gpu_memory=None, cpu="test", cores=1, memory=free, memory_available=free) for free in (100_000, 2**30)
    )
    said = too_long_to_read(path, small)
    assert said is not None and said.startswith("long.csv has") and "give a shorter list" in said
    assert too_long_to_read(path, large) is None
    assert too_long_to_read(tmp_path / "nothing.csv", small) is None
