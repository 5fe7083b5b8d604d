"""The timeline of a simulated run: its data, its watermark, the same bytes every time."""

from __future__ import annotations

import pytest

from plots import simulated_timeline
from plots.files import to_bytes, to_csv

SPANS = [
    {"rank": 0, "lane": "attention", "begin_ms": 0.0, "end_ms": 2.0},
    {"rank": 0, "lane": "from its node", "begin_ms": 0.5, "end_ms": 1.0},
    {"rank": 1, "lane": "from other nodes", "begin_ms": 0.0, "end_ms": 3.0},
    {"rank": 1, "lane": "attention", "begin_ms": 3.0, "end_ms": 4.5},
]


def test_the_frame_holds_the_spans() -> None:
    frame = simulated_timeline.data(SPANS)
    assert to_csv(frame).splitlines() == [
        "rank,lane,begin_ms,end_ms", "0,attention,0,2", "0,from its node,0.5,1", "1,from other nodes,0,3", "1,attention,3,4.5",
    ]  # fmt: skip


@pytest.mark.parametrize("spans", [[], [SPANS[0] | {"lane": "measured"}]])
def test_what_is_no_timeline_is_refused(spans: list) -> None:
    with pytest.raises(ValueError, match="lanes: attention"):
        simulated_timeline.data(spans)


def test_every_timeline_carries_the_watermark() -> None:
    figure = simulated_timeline.draw(simulated_timeline.data(SPANS), "SIMULATED on a model", title="A run", compute_ms=3.5)
    texts = [text.get_text() for text in figure.texts]
    assert "SIMULATED" in texts and any("SIMULATED on a model" in text for text in (*texts, figure.get_supxlabel()))
    (axes,) = figure.axes
    assert len(axes.collections) == 4  # attention of two ranks, and what each receives
    assert axes.get_ylim() == (2.0, 0.0)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["attention", "from its node", "from other nodes"]


def test_equal_spans_give_equal_bytes() -> None:
    one, other = (
        to_bytes(simulated_timeline.draw(simulated_timeline.data(SPANS), "c", title="t", compute_ms=1.0), "svg")
        for _ in range(2)
    )
    assert one == other
