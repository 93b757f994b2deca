"""Predicted peaks of memory beside measured ones, source by source."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.accuracy.memory import GIB, SEEN, MemoryScore, memory_scores, memory_table
from sim.accuracy.published import published_rows
from sim.accuracy.rows.plans import case_of
from sim.memory.report import memory_of
from sim.setting.bind import bind
from topologies.errors import BadInput

SHARED = Path(__file__).parents[4] / "shared"


def score(source: str, measured: float, predicted: float, refused: str = "") -> MemoryScore:
    return MemoryScore(
        row_id="r", source=source, model="m", gpu="g", measured=round(measured * GIB), predicted=round(predicted * GIB), refused=refused
    )


def test_the_table_by_source() -> None:
    table = memory_table(
        [score("a", 10, 11), score("a", 10, 8), score("b", 1, 1), score("b", 1, 9, "no plan"), score("c", 1, 2, "no plan")]
    )
    assert [row["source"] for row in table] == ["a", "b"]
    assert table[0] == {
        "source": "a",
        "rows": 2,
        "mape": 0.15,
        "median_ape": 0.15,
        "bias": -0.05,
        "worst_ape": 0.2,
        "seen while modelling": False,
    }
    assert (table[1]["rows"], table[1]["mape"]) == (1, 0.0)


@pytest.mark.no_cover
@pytest.mark.skipif(not (SHARED / "groundtruth" / "training.csv").is_file(), reason="the published measurements are not here")
def test_measured_peaks() -> None:
    scores = memory_scores(SHARED)
    table = {str(row["source"]): row for row in memory_table(scores)}
    seen = table[SEEN[0]]
    assert seen["rows"] == 35
    assert isinstance(seen["mape"], float) and seen["mape"] <= 0.05
    assert isinstance(seen["worst_ape"], float) and seen["worst_ape"] <= 0.05
    assert table["torchtitan"]["rows"] == 8 and float(str(table["torchtitan"]["mape"])) < 0.03
    bloom = table["bigscience-bloom-topology"]
    assert float(str(bloom["mape"])) < 0.05 and abs(float(str(bloom["bias"]))) < 0.02
    assert not [one.refused for one in scores if one.refused]


def test_what_a_source_printed_is_what_is_compared() -> None:
    """SimuMax what is allocated, torchtitan what is reserved, BLOOM's sweeps what nvidia-smi shows, in thousands of MiB."""
    scores = {one.row_id: one for one in memory_scores()}
    reports = {}
    for row in published_rows():
        if row.row_id in ("simumax-b200-0001", "torchtitan-0001", "bigscience-bloom-topology-0005"):
            case = case_of(row)
            setting = bind(case.plan, case.topology, case.edits)
            reports[row.row_id] = memory_of(setting.plan, setting.network, setting.framework, setting.topology.device(0))
    predicted = {row_id: scores[row_id].predicted for row_id in reports}
    assert predicted == {
        "simumax-b200-0001": reports["simumax-b200-0001"].allocated,
        "torchtitan-0001": reports["torchtitan-0001"].reserved,
        "bigscience-bloom-topology-0005": reports["bigscience-bloom-topology-0005"].peak,
    }
    assert scores["torchtitan-0001"].measured == round(82.4 * GIB)
    assert scores["bigscience-bloom-topology-0005"].measured == 29 * 1000 << 20


def test_a_table_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="does not exist"):
        memory_scores(tmp_path)
