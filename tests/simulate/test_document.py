"""docs/simulator.md shows the rates that the model uses."""

from __future__ import annotations

import pytest

from harness.provenance import ROOT
from harness.simulate.cluster import find_cluster
from harness.simulate.document import with_tables

TEXT = (ROOT / "docs" / "simulator.md").read_text()


def test_the_tables_of_rates_are_those_of_the_files() -> None:
    assert with_tables(TEXT, find_cluster("h200_8")) == TEXT, "run python -m harness.simulate.fit"
    assert TEXT.count("| fm3 ") >= 2 and "| NVLink, copy | 366 GB/s" in TEXT


def test_a_page_without_a_marker_is_refused() -> None:
    with pytest.raises(ValueError, match="links: end"):
        with_tables(TEXT.replace("<!-- links: end -->", ""), find_cluster("h200_8"))
