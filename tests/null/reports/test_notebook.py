"""Results show themselves in a notebook; the example notebook runs."""

import html
import json
from typing import Any

import pytest

from reports.example import CELLS, NOTEBOOK, execute, shown_as
from reports.notebook import attach, shown
from sim.files.planfile import load_plan
from sim.predict import predict, predict_setting
from sim.setting.bind import bind
from topologies.errors import UnknownName
from topologies.load import load_topology

HOSTILE = "<script>alert(1)</script>"


def test_a_prediction_shows_itself() -> None:
    found = shown(
        predict({"name": HOSTILE, "model": "gpt2-124m", "batch": {"global": 16, "micro": 2}, "parallel": {"dp_shard": 8}}, "dgx-h100")
    )
    text = found._repr_html_()  # type: ignore[attr-defined]
    assert "tokens / s / GPU" in text and "MFU" in text
    assert "<script" not in text
    for name in ("", "timeline", "breakdown", "memory", "sources"):
        assert found.figure(name).data, name  # type: ignore[attr-defined]


def test_notebooks_name_what_was_changed_and_what_is_doubtful() -> None:
    """A what-if stood under the name of the machine as it is, without the warning that it changes nothing there."""
    found = shown(predict({"model": "gpt2-124m", "batch": {"global": 2}}, "dgx-h100", edits=("oversubscription=4",)))
    text = found._repr_html_()  # type: ignore[attr-defined]
    assert "dgx-h100 with oversubscription=4, 1 rank: predicted" in text and "oversubscription=4 has no effect" in text
    machine = shown(load_topology("dgx-h100", ("oversubscription=4",)))._repr_html_()  # type: ignore[attr-defined]
    assert "dgx-h100 with oversubscription=4: 8 ranks" in machine and "8 x ib-ndr-400g" in machine


def test_memory_in_a_notebook_peaks_at_the_reported_peak() -> None:
    found = shown(predict({"model": "gpt2-124m", "batch": {"global": 16, "micro": 2}, "parallel": {"dp_shard": 8}}, "dgx-h100"))
    figure = found.figure("memory")  # type: ignore[attr-defined]
    assert max(y for line in figure.data for y in line.y) == pytest.approx(found.peak_memory_bytes / 2**30, rel=1e-6)


def test_memory_in_a_notebook_is_that_of_the_machine_as_it_was_changed() -> None:
    found = shown(predict("gpt2-ddp8", "dgx-h100", edits=("gpu.memory=40 GiB",)))
    assert [one.text for one in found.figure("memory").layout.annotations] == ["device memory 40 GiB"]  # type: ignore[attr-defined]


def test_a_step_whose_runs_of_ops_are_one_span_has_no_line_of_memory() -> None:
    """What they hold is not known in between: a line would be of something else."""
    tree = {"model": "gpt2-124m", "batch": {"global": 16, "micro": 2}, "parallel": {"dp_shard": 8}}
    found = shown(predict_setting(bind(load_plan(tree), "dgx-h100"), detail=False))
    with pytest.raises(UnknownName, match="runs of ops are one span"):
        found.figure("memory")  # type: ignore[attr-defined]


def test_a_topology_shows_itself_and_names_its_figures() -> None:
    found = shown(load_topology("dgx-h100"))
    assert "h100-sxm" in found._repr_html_()  # type: ignore[attr-defined]
    assert found.figure().data  # type: ignore[attr-defined]
    with pytest.raises(UnknownName, match="machine"):
        found.figure("machin")  # type: ignore[attr-defined]


def _planned() -> dict[str, Any]:
    from sim.files.planfile import load_plan
    from sim.planning.capacity.capacity import capacity
    from sim.planning.capacity.scaling import scaling
    from sim.planning.disturbed.faults import faults
    from sim.planning.disturbed.jobs import jobs
    from sim.planning.explain.explanation import explain
    from sim.planning.montecarlo import spread
    from sim.setting.bind import bind

    plan = load_plan({"model": "gpt2-124m", "batch": {"global": 16, "micro": 2}, "parallel": {"dp_replicate": 4}})
    return {
        "explanation": explain(bind(plan, "dgx-h100"), tries=3),
        "capacity": capacity(plan, "dgx-h100", 1e9),
        "curve": scaling(plan, "dgx-h100", (2, 4, 8), 1e9),
        "faults": faults(plan, "dgx-h100", ("slow=r0:0.8",)),
        "jobs": jobs([plan, plan], "dgx-h100", ("compact",)),
        "spread": spread(plan, "dgx-h100", 50),
    }


@pytest.mark.no_cover
def test_values_of_planning_show_themselves_with_every_figure() -> None:
    for name, value in _planned().items():
        value = shown(value)
        text = value._repr_html_()
        assert html.escape(str(value)) in text, name
        first = value.figure()
        with pytest.raises(UnknownName) as error:
            value.figure("nonsense")
        figures = {which: value.figure(which) for which in str(error.value).partition("Allowed: ")[2].split(", ")}
        assert first in figures.values()
        assert all(figure.data for figure in figures.values()), name


@pytest.mark.no_cover
def test_bars_are_as_long_as_the_times_that_they_show() -> None:
    planned = _planned()
    path = shown(planned["explanation"]).figure("path").data[0]
    assert list(path.x) == sorted(path.x, reverse=True)
    assert sum(path.x) <= 1e3 * planned["explanation"].step_time_s * (1 + 1e-9)
    (row,) = planned["faults"].rows
    figure = shown(planned["faults"]).figure()
    assert list(figure.data[0].x) == [1e3 * row.step_time_s] and figure.layout.xaxis.range[1] > 1e3 * row.step_time_s
    alone, beside = shown(planned["jobs"]).figure().data
    assert [*alone.x, *beside.x] == [
        1e3 * t for t in (*(j.alone_s for j in planned["jobs"].rows), *(j.together_s for j in planned["jobs"].rows))
    ]


def test_other_values_pass_through() -> None:
    assert shown(3) == 3


def test_attaching_twice_changes_nothing() -> None:
    from sim.align import Comparison

    attach()
    first = Comparison.figure  # type: ignore[attr-defined]
    attach()
    assert Comparison.figure is first  # type: ignore[attr-defined]


@pytest.mark.no_cover
def test_the_example_notebook_is_the_scripts_and_runs() -> None:
    cells = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
    assert [(cell["cell_type"], "".join(cell["source"])) for cell in cells] == list(CELLS), "run: python -m reports.example"
    assert NOTEBOOK.stat().st_size < 400_000
    names: dict[str, object] = {"__name__": "__main__"}
    for cell in cells:
        if cell["cell_type"] != "code":
            continue
        printed, value = execute("".join(cell["source"]), names)
        kinds = [kind for output in cell["outputs"] for kind in output.get("data", {"stream": 0})]
        assert kinds == ([*(["stream"] if printed else []), *(shown_as(value) if value is not None else [])])
