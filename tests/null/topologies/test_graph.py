"""The networkx graph, and the figure of a machine."""

import networkx
import pytest

from reports.figures.layout import places_of
from reports.figures.machine import machine
from topologies.load import load_topology


def test_graph_has_every_part_and_both_directions() -> None:
    graph = load_topology("2x dgx-a100").graph()
    kinds = {data["kind"] for _, data in graph.nodes(data=True)}
    assert kinds >= {"gpu", "engine", "socket", "numa", "dram", "sw", "nvswitch", "nic", "leaf", "spine"}
    assert graph.edges["n0/gpu0", "n0/nvswitch"] == {"kind": "nvlink", "rate": 300e9, "latency": 0.7e-6}
    assert all(graph.has_edge(b, a) for a, b, data in graph.edges(data=True) if data["kind"] != "engine")
    assert networkx.is_weakly_connected(graph)


def test_graph_agrees_with_the_paths() -> None:
    found = load_topology("2x gcp-a3-ultra")
    graph = found.graph()
    for a, b in ((0, 1), (0, 9), (3, 12)):
        for link in found.path(a, b).links:
            x, _, y = link.partition(">")
            assert graph.edges[x, y]["rate"] == found.rates[link]


def test_large_clusters_show_one_node_and_its_network() -> None:
    graph = load_topology("2048x dgx-h100").graph()
    assert {data["node"] for _, data in graph.nodes(data=True)} == {0, -1}


@pytest.mark.parametrize("name", ["dgx1-v100", "dgx-h100", "rtx-4090-x8", "gb200-nvl72", "cpu-host", "2x dgx-a100"])
def test_figure_names_every_part_and_rate(name: str) -> None:
    found = load_topology(name)
    figure = machine(found, 1)
    graph = found.graph(1)
    shown = {text for trace in figure.data if trace.mode and trace.mode.startswith("markers") for text in trace.text}
    for vertex, data in graph.nodes(data=True):
        assert vertex.split("/", 1)[-1] in shown or data["kind"] == "engine"
    graph.remove_nodes_from([vertex for vertex, data in graph.nodes(data=True) if data["kind"] == "engine"])
    places = places_of(graph)
    assert len(set(places.values())) == len(places), "two parts are drawn on one spot"
    hover = [text for trace in figure.data for text in trace.hovertext or () if "<->" in text]
    assert len(hover) == len({frozenset(edge) for edge in graph.edges})


def test_figure_writes_the_rates() -> None:
    texts = {text for trace in machine(load_topology("dgx-h100")).data for text in trace.text or ()}
    assert {"450 GB/s", "53 GB/s", "307.2 GB/s", "22 GB/s"} <= texts
