"""The monitor draws what the table says, and nothing where nothing ran."""

from __future__ import annotations

from reports.figures.utilisation import chosen, monitor
from sim.predict import predict
from sim.timeline.utilisation import utilisation
from sim.trace import Trace
from topologies.load import load_topology


def test_strips_are_the_tables() -> None:
    found = predict("two-gpus-six-stages", "h100-pcie-x8")
    assert found.trace
    table = utilisation(found.trace, load_topology("h100-pcie-x8"), bins=20)
    uses = chosen(table)
    assert {"cores", "thread", "compute", "copy", "comm"} == {use.kind for use in uses} and len(uses) <= 16
    figure = monitor(table)
    assert len(figure.data) == len(uses)
    assert [round(100 * value, 2) for value in uses[0].busy] == list(figure.data[0].y)


def test_nothing_ran() -> None:
    table = utilisation(Trace([]), load_topology("dgx-h100"))
    assert table.uses == () and "nothing ran" in monitor(table).layout.annotations[0].text
