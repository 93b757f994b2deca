"""What is said beside figures when the input makes little sense: a trace of another run, loaders without number."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from reports.pages.comparison import comparison_page
from reports.scene import scene
from sim.align import Measured
from sim.files.chrome import to_kineto, write_trace
from sim.imported import read_measured
from sim.predict import predict
from sim.result.compare import compare, doubts, measured_file, measured_times
from sim.timeline.metrics import step_times
from sim.trace import Trace
from tests.null.verbs.test_verbs import Call, call
from topologies.errors import BadInput

__all__ = ["call"]

MLP = {"family": "mlp", "name": "m", "widths": [64, 64]}


def test_a_trace_of_another_plan_or_of_more_ranks(tmp_path: Path) -> None:
    one, two = ({"model": MLP, "name": f"of-{ranks}", "parallel": {"dp_replicate": ranks}} for ranks in (1, 2))
    traced = predict(two, "dgx-h100")
    assert traced.trace is not None
    write_trace(traced.trace, tmp_path / "two.json.gz")
    trace = read_measured(tmp_path / "two.json.gz")
    (itself,) = doubts(traced, trace)
    assert itself.startswith("the trace is a prediction itself")
    assert doubts(predict(one, "dgx-h100"), trace) == [
        itself,
        "the trace is of 'of-2', the prediction of 'of-1'",
        "the trace is of 2 ranks, the plan has 1",
        "the trace holds collectives, and the plan's ranks send nothing: is it of a run on as many GPUs, split the same way?",
    ]


def test_a_trace_of_another_model_or_without_communication_is_told() -> None:
    """That names neither: torch.profiler's say nothing of a plan. Fused otherwise, by a cause that doubts nothing, it may be of the same."""

    def recorded(**changed: object) -> Trace:
        plan = {"model": "gpt2-124m", "seq_len": 256, "batch": {"micro": 1}, "parallel": {"dp_replicate": 2}} | changed
        trace = predict(plan, "dgx-h100").trace
        assert trace
        return replace(trace, meta={})

    predicted = predict({"model": "gpt2-124m", "seq_len": 256, "batch": {"micro": 1}, "parallel": {"dp_replicate": 2}}, "dgx-h100")
    assert doubts(predicted, recorded()) == []
    assert doubts(predicted, recorded(model={"base": "gpt2-124m", "fused_qkv": True})) == []
    (said,) = doubts(predicted, recorded(model={"base": "gpt2-124m", "layers": 24}))
    assert re.search(r"runs 291 matrix products on a rank, one of the prediction 147", said), said
    (said,) = doubts(predicted, recorded(batch={"micro": 1, "global": 4}))
    assert "as many layers and micro-batches" in said
    alone = recorded()
    (said,) = doubts(predicted, replace(alone, spans=[span for span in alone.spans if not span.cls.startswith("comm")]))
    assert said.startswith("the trace holds no collective")


def test_a_trace_that_cannot_be_of_the_plan_is_told_first() -> None:
    """A table of errors of thousands of percent stood below two questions. Steps that no GPU is fast enough for, or hardly a product in them."""
    plan = {"model": "gpt2-1.5b", "seq_len": 1024, "batch": {"micro": 8}}
    predicted = predict(plan, "dgx-h100")
    trace = predict({"model": MLP, "batch": {"micro": 8}}, "dgx-h100").trace
    assert trace
    first = doubts(predicted, replace(trace, meta={}))[0]
    assert re.match(
        r"the trace is not of this plan: with its step of .* would use [\d,]+% of what .*, and a step of it runs 2 matrix", first
    ), first
    own = predicted.trace
    assert own
    faster = replace(own, meta={}, spans=[replace(span, start=span.start / 4, end=span.end / 4) for span in own.spans])
    (said,) = doubts(predicted, faster)
    assert said.startswith("the trace is not of this plan: with its step of") and "matrix products" not in said
    assert doubts(predict(plan | {"precision": "fp8"}, "dgx-h100"), faster) == [], (
        "8 bits may be faster than the peak that MFU is counted against"
    )
    page = comparison_page(
        "p", predicted.to_dict(), [own, faster], {}, {}, [said, "another one"], scene(predicted.plan, None, own, None, "")
    )
    assert page.index("the trace is not of this plan") < page.index("step time, predicted") < page.index("another one")


@pytest.mark.parametrize(("workers", "warned"), [(28, False), (29, True), (10_000, True)])
def test_loaders_that_outnumber_hardware_threads(workers: int, warned: bool) -> None:
    """Eight ranks on 112 cores."""
    found = predict({"model": MLP, "parallel": {"dp_replicate": 8}, "data": {"workers": workers}}, "dgx-h100")
    assert any("loader processes" in text for text in found.warnings) is warned


def test_loaders_of_ranks_that_go_round_the_nodes() -> None:
    """The first eight ranks are on eight nodes, each of which has seven more."""
    plan = {"model": MLP, "parallel": {"dp_replicate": 64}, "data": {"workers": 29}}
    assert any("loader processes" in text for text in predict(plan, "8x dgx-h100", edits=("order=scatter",)).warnings)


def test_the_step_in_which_a_recording_began_is_left_out() -> None:
    """Where it holds others; and what an op waited for its peers is no work of its own."""
    predicted = predict({"model": MLP, "parallel": {"dp_replicate": 2}}, "dgx-h100")
    assert predicted.trace
    spans = [replace(span, id=span.id.partition("mb0/")[2] or span.id) for span in predicted.trace.spans]
    begun = [replace(span, end=span.end + span.seconds) if span.step == 0 else span for span in spans]
    waited = [replace(span, end=span.end + 1.0, wait=span.wait + 1.0) for span in spans if span.step == 1]
    assert [row.error for row in compare(predicted, replace(predicted.trace, spans=begun)).classes] == pytest.approx([0.0] * 7)
    found = compare(predicted, replace(predicted.trace, spans=waited))
    assert all(row.measured for row in found.classes)
    assert found.pairs and all(pair.measured == pytest.approx(pair.predicted) for pair in found.pairs)


def test_the_step_that_a_recording_begins_in_is_not_among_those_measured() -> None:
    """It begins with the recording; the page draws the steps that the median is of."""
    predicted = predict({"model": MLP}, "dgx-h100")
    assert predicted.trace
    begun = [replace(span, end=span.end + span.seconds) if span.step == 0 else span for span in predicted.trace.spans]
    trace = replace(predicted.trace, spans=begun)
    times = measured_times(trace)
    assert times == step_times(trace)[1:] and compare(predicted, trace).measured_step == Measured.of(times)


def test_ops_are_compared_over_all_micro_batches_of_a_step() -> None:
    """Ranges name neither the micro-batch nor which forward pass of it: the second one, for activations that were dropped, opens the same."""
    plan = {"model": "gpt2-124m", "seq_len": 256, "batch": {"global": 3, "micro": 1}, "memory": {"recompute": "full"}}
    predicted = predict(plan, "dgx-h100", steps=2)
    assert predicted.trace
    ranges = {"recompute": "fwd", "wgrad": "bwd"}
    named = [(span, *re.sub(r"^r0/s\d/mb\d/", "", span.id).split("/")) for span in predicted.trace.spans if "/mb" in span.id]
    spans = [replace(span, id="/".join((ranges.get(kind, kind), *rest))) for span, kind, *rest in named]
    found = {pair.id: pair for pair in compare(predicted, replace(predicted.trace, spans=spans)).pairs}
    once = next(span.seconds for span in predicted.trace.spans if span.id == "r0/s1/mb0/fwd/L0.attn.qkv")
    assert found["fwd/L0.attn.qkv"].predicted == pytest.approx(6 * once, rel=0.01)
    assert all(pair.measured == pytest.approx(pair.predicted) for pair in found.values())


def test_ops_of_all_stages_are_compared() -> None:
    predicted = predict({"model": "gpt2-124m", "seq_len": 256, "batch": {"global": 4, "micro": 1}, "parallel": {"pp": 4}}, "dgx-h100")
    assert predicted.trace
    spans = [replace(span, id=re.sub(r"^r\d+/s\d+/mb\d+/", "", span.id).replace("wgrad/", "bwd/")) for span in predicted.trace.spans]
    found = {pair.id: pair for pair in compare(predicted, replace(predicted.trace, spans=spans)).pairs}
    assert {f"{pass_}/L{layer}.attn.qkv" for pass_ in ("fwd", "bwd") for layer in range(12)} <= set(found)
    assert found["fwd/L11.attn.qkv"].rank == 3
    assert all(pair.measured == pytest.approx(pair.predicted) for pair in found.values())


@pytest.mark.no_cover
def test_one_rank_s_trace_is_laid_beside_its_own_stage(tmp_path: Path) -> None:
    """Profilers write a file for each rank. Of each stage the first of two ranks is simulated."""
    plan = {"model": "gpt2-124m", "seq_len": 256, "batch": {"global": 8, "micro": 1}, "parallel": {"pp": 4, "dp_replicate": 2}}
    predicted = predict(plan, "dgx-h100")
    assert predicted.trace and predicted.trace.ranks == [0, 2, 4, 6]
    for rank in predicted.trace.ranks:
        own = predicted.trace.of([rank])
        folded = replace(own, spans=[replace(span, rank=rank + 1) for span in own.spans])
        (tmp_path / f"{rank}.json").write_text(json.dumps(to_kineto(predicted.trace, rank)))
        for measured in (tmp_path / f"{rank}.json", folded):
            found = compare(predicted, measured)
            assert found.ranks == (rank,)
            assert all(row.measured == pytest.approx(row.predicted, rel=0.01) for row in found.classes)
            assert found.predicted_step == pytest.approx(predicted.step_time_s)
            assert any(row.cls == "loss" for row in found.classes) is (rank == 6)
    assert compare(predicted, replace(own, world=1)).ranks == (0, 2, 4, 6)
    (said,) = doubts(predicted, replace(own, world=1))
    assert "which stage" in said and doubts(predicted, own) == []


def test_a_recording_without_steps_is_told() -> None:
    predicted = predict({"model": MLP}, "dgx-h100")
    assert predicted.trace
    unmarked = replace(predicted.trace, spans=[replace(span, step=0) for span in predicted.trace.spans])
    (said,) = doubts(predicted, unmarked)
    assert "one step" in said and "'step 0'" in said


def test_a_measured_trace_may_be_a_runs_folder(tmp_path: Path) -> None:
    """What was trained counts before what was played; a prediction is no measurement."""
    predicted = predict({"model": MLP, "parallel": {"dp_replicate": 2}}, "dgx-h100")
    assert predicted.trace
    write_trace(predicted.trace, tmp_path / "predicted.json.gz")
    with pytest.raises(BadInput, match=r"a folder without a measured trace \(stock.json.gz or played.json.gz\). Give torch.profiler's"):
        compare(predicted, tmp_path)
    for name in ("played.json.gz", "stock.json.gz"):
        write_trace(predicted.trace, tmp_path / name)
        assert measured_file(tmp_path) == tmp_path / name
    assert compare(predicted, tmp_path).error == pytest.approx(0.0)
    with pytest.raises(BadInput, match=r"there is no measured trace .*nowhere.json. Give .* or a run's folder"):
        compare(predicted, tmp_path / "nowhere.json")


@pytest.mark.no_cover
@pytest.mark.parametrize(
    "words",
    [
        ("capacity", "--tokens", "1e9"),
        ("spread", "--draws", "2"),
        ("faults", "--fault", "slow=r0:0.8"),
        ("jobs", "big.toml", "--place", "compact"),
    ],
    ids=lambda words: words[0],
)
def test_no_study_passes_over_a_plan_that_does_not_fit(call: Call, words: tuple[str, ...]) -> None:
    """Each says so, in JSON, in words and on its page, and ends with 3."""
    Path("big.toml").write_text('model = "gpt2-1.5b"\nbatch = { global = 64, micro = 64 }\n')
    verb, *more = words
    said = call(verb, "big.toml", *more, "--on", "dgx-a100-40gb", "--report", "page.html")
    assert said.code == 3 and re.search(r"fits: no|fits .* no |\bno\b +1\.000 x", said.out)
    assert "does not fit into the memory of one device; the figures" in Path("page.html").read_text()
    told = call(verb, "big.toml", *more, "--on", "dgx-a100-40gb", "--json")
    found = told.json
    assert told.code == 3 and not any(one["fits"] for one in (found["rows"] if verb == "jobs" else [found]))
