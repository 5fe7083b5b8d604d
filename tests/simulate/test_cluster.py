"""Clusters read from files: those of the project, a user's own, and every way to get one wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.provenance import ROOT
from harness.simulate.cluster import Cluster, find_cluster, known_clusters
from harness.simulate.rates import FAST, FOLDER, NOMINAL, SLOW
from harness.simulate.reading import ClusterError


def mine(folder: Path, change: Any = None, name: str = "mine.yaml") -> Cluster:
    """A user's file: h200_8 with a change made to what YAML reads of it."""
    found = yaml.safe_load((FOLDER / "h200_8.yaml").read_text())
    if change is not None:
        change(found)
    path = folder / name
    path.write_text(yaml.safe_dump(found))
    return find_cluster(str(path))


def test_the_clusters_of_the_project() -> None:
    assert known_clusters() == ["h100_8", "h200_8", "h200_node"]
    found = {name: find_cluster(name) for name in known_clusters()}
    assert {name: (one.nodes, one.gpus_per_node, one.far is None) for name, one in found.items()} == {
        "h100_8": (8, 8, False),
        "h200_8": (8, 8, False),
        "h200_node": (1, 8, True),
    }
    assert [one.borrowed for one in found.values()] == [True, False, False]
    assert "8 x NVIDIA H200" in found["h200_8"].title
    assert len({one.digest for one in found.values()}) == 3


def test_borrowed_rates_are_wider() -> None:
    own, borrowed = find_cluster("h200_8"), find_cluster("h100_8")
    rates = own.kernel("fm3", "forward", 128, "bfloat16")
    assert borrowed.kernel_spread(rates, False) == pytest.approx(own.kernel_spread(rates, False) + 0.1)
    assert own.kernel_spread(rates, True) == pytest.approx(2 * rates.worst)
    for name, way in own.near.ways.items():
        assert borrowed.near.ways[name].gb_per_s.spread == pytest.approx(way.gb_per_s.spread + 0.1)


def test_every_rate_says_where_it_is_from() -> None:
    """A line of the readings, a line of the rows, a data sheet, or that it is assumed."""
    readings = {line.split(",")[0] for line in (ROOT / "results/nvidia-h200/links.csv").read_text().splitlines()[1:]}
    for name in known_clusters():
        cluster = find_cluster(name)
        links = [cluster.near, *([cluster.far] if cluster.far else [])]
        rates = [cluster.memory_gb_per_s]
        for link in links:
            rates += [link.wire_gb_per_s, link.message_us]
            rates += [rate for way in link.ways.values() for rate in (way.gb_per_s, way.latency_us, way.beside)]
        for rate in rates:
            if "links.csv: " in rate.source:
                ids = rate.source.split("links.csv: ")[1].split(";")[0].split(", ")
                assert set(ids) <= readings, rate.source
            else:
                assert "data sheet" in rate.source or rate.source.startswith("assumed, not measured"), rate.source


def test_a_lane_is_never_faster_than_its_wire_and_slower_at_the_slow_end() -> None:
    cluster = find_cluster("h200_8")
    for link, network in ((cluster.near, False), (cluster.far, True)):
        assert link is not None
        for way in link.ways:
            slow, nominal, fast = (link.lane(way, network, end) for end in (SLOW, NOMINAL, FAST))
            assert slow.bytes_per_ms < nominal.bytes_per_ms <= fast.bytes_per_ms <= link.wire_gb_per_s.value * 1e6
            assert 0 < slow.beside <= nominal.beside <= fast.beside <= 1


@pytest.mark.parametrize(("ranks", "per_node"), [(1, 1), (2, 2), (7, 7), (8, 8), (16, 8), (24, 8), (64, 8)])
def test_degrees_that_fit(ranks: int, per_node: int) -> None:
    assert find_cluster("h200_8").ranks_per_node(ranks) == per_node


@pytest.mark.parametrize(
    ("cluster", "ranks", "said"),
    [
        ("h200_8", 12, "cp_degree=12: h200_8 holds 1 to 8 ranks and multiples of 8 up to 64"),
        ("h200_8", 72, "cp_degree=72"),
        ("h200_node", 16, "cp_degree=16: h200_node holds 1 to 8 ranks$"),
        ("h200_node", 0, "cp_degree=0"),
    ],
)
def test_degrees_that_the_topology_cannot_hold(cluster: str, ranks: int, said: str) -> None:
    with pytest.raises(ClusterError, match=said):
        find_cluster(cluster).ranks_per_node(ranks)


def test_rates_that_were_not_fitted_are_named() -> None:
    cluster = find_cluster("h200_8")
    with pytest.raises(ClusterError, match="no rates of fm3 forward D=96 .*fitted: .*fm3 forward D=128"):
        cluster.kernel("fm3", "forward", 96, "bfloat16")
    with pytest.raises(ClusterError, match="dtype=float32.*allowed: bfloat16, float16"):
        cluster.kernel("fm3", "forward", 128, "float32")


def test_a_users_file(tmp_path: Path) -> None:
    one = mine(tmp_path, lambda found: found["far"]["ways"]["sm"]["gb_per_s"].update(value=20))
    assert (one.name, one.ranks_per_node(16)) == ("mine", 8)
    assert one.far is not None and one.far.lane("sm", True, NOMINAL).bytes_per_ms == 20e6
    assert one.digest != find_cluster("h200_8").digest


def drop(*keys: str) -> Any:
    def change(found: dict[str, Any]) -> None:
        for key in keys[:-1]:
            found = found[key]
        del found[keys[-1]]

    return change


def put(value: Any, *keys: str) -> Any:
    def change(found: dict[str, Any]) -> None:
        for key in keys[:-1]:
            found = found[key]
        found[keys[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (drop("sms"), "mine.yaml lacks sms"),
        (drop("near", "ways"), "mine.yaml: near lacks ways"),
        (drop("far"), "lacks far: with nodes=8"),
        (put(1, "nodes"), "far is given, but nodes is 1"),
        (put(0, "nodes"), "nodes is 0; it must be an integer, at least 1"),
        (put(8.5, "gpus_per_node"), "gpus_per_node is 8.5"),
        (put(3, "gpu_per_node"), "did you mean 'gpus_per_node'"),
        (put(-1, "memory_gb_per_s", "value"), "memory_gb_per_s.value is -1; it must be a number above 0"),
        (put(0, "near", "wire_gb_per_s", "value"), "near.wire_gb_per_s.value is 0"),
        (put("fast", "far", "ways", "sm", "gb_per_s", "value"), "'fast'; it must be a number"),
        (put(60, "far", "ways", "sm", "gb_per_s", "value"), "above the wire's 50: inconsistent"),
        (put(1.5, "far", "ways", "sm", "beside", "value"), "beside.value is 1.5; it must be a number at least 0 and at most 1"),
        (put(2, "far", "ways", "sm", "beside", "spread"), "beside.spread is 2"),
        (drop("far", "ways", "sm", "latency_us", "source"), "latency_us lacks source"),
        (put({}, "far", "ways"), "far.ways lacks sm"),
        (put("measured", "far", "ways"), "the rates hold no way over this link"),
        (put("nvidia-h20", "rates"), "rates is 'nvidia-h20'"),
        (put("NVIDIA H100 80GB HBM3", "gpu"), "widen must say by how much"),
        (put(0.1, "widen"), "the rates are of NVIDIA H200 itself"),
        (put([1, 2], "near"), "near is .1, 2.; it must be a mapping"),
    ],
)
def test_every_wrong_entry_is_named(tmp_path: Path, change: Any, said: str) -> None:
    with pytest.raises(ClusterError, match=said):
        mine(tmp_path, change)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="did you mean 'h200_8'"):
        find_cluster("h200_9")
    with pytest.raises(ClusterError, match="or the path of a YAML file"):
        find_cluster("nowhere.yaml")
    (tmp_path / "broken.yaml").write_text("gpu: [a\n")
    with pytest.raises(ClusterError, match=r"broken.yaml: not YAML \(line 2: "):
        find_cluster(str(tmp_path / "broken.yaml"))
    (tmp_path / "list.yaml").write_text("- a\n")
    with pytest.raises(ClusterError, match="it must be a mapping"):
        find_cluster(str(tmp_path / "list.yaml"))
    (tmp_path / "code.yaml").write_text("gpu: !!python/object/apply:os.getcwd []\n")
    with pytest.raises(ClusterError, match="not YAML"):
        find_cluster(str(tmp_path / "code.yaml"))


def test_a_users_file_cannot_take_the_name_of_another(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="h200_8 is a cluster of this project; give the file another name"):
        mine(tmp_path, name="h200_8.yaml")
