"""The Python face, as scripts use it: one shape of call for plans and machines, errors of one tree, results that travel between processes."""

from __future__ import annotations

import inspect
import json
import multiprocessing
import os
import pickle
import re
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy
import pytest

import steptwin
from executor.twin import run_plan, twin
from sim.planning.capacity.capacity import capacity
from sim.planning.explain.explanation import explain
from sim.planning.montecarlo import spread
from sim.planning.sweeps.sweep import sweep
from sim.predict import predict
from topologies.errors import SteptwinError

PLAN = {"model": "gpt2-124m", "seq_len": 256, "parallel": {"dp_replicate": 4}}
ERRORS = ("BadInput", "Disconnected", "NoRoom", "Refused", "RunFailed", "UnitError", "UnknownName")


def below(kind: type) -> Iterator[type]:
    """All kinds of an error."""
    for one in kind.__subclasses__():
        yield from (one, *below(one))


def test_errors_are_of_one_tree_that_the_docstring_draws() -> None:
    for name in ERRORS:
        assert issubclass(getattr(steptwin, name), steptwin.SteptwinError) and name in (steptwin.__doc__ or "")
    known = {kind.__name__ for kind in below(steptwin.SteptwinError) if kind.__module__ == "topologies.errors"}
    assert known == set(ERRORS), "a new kind of error: into the face and its docstring"
    assert steptwin.SteptwinError is SteptwinError


def test_all_that_is_offered_is_there_and_says_what_it_does() -> None:
    for name in steptwin.__all__:
        assert (getattr(steptwin, name).__doc__ or "").strip(), name
    assert {"predict", "run", "compare", "sweep", "twin", "faults", "jobs", "spread", "plan", "Jitter"} <= set(steptwin.__all__)


@pytest.mark.no_cover
def test_jitter_is_at_hand_where_errors_name_it() -> None:
    with pytest.raises(steptwin.BadInput, match=r"write steptwin\.Jitter\(") as told:
        steptwin.spread(PLAN, "dgx-h100", 4, jitter=0.1)  # type: ignore[arg-type]
    written = re.search(r"steptwin\.Jitter\((.*?)\)", str(told.value))
    assert written is not None
    values = {key: float(value) for key, value in (pair.split("=") for pair in written[1].split(", "))}
    assert steptwin.Jitter(**values) == steptwin.Jitter(), "what the error writes is what is taken where nothing is said"
    assert steptwin.spread(PLAN, "dgx-h100", 4, jitter=steptwin.Jitter(slow_link=2.0)).jitter.slow_link == 2.0
    with pytest.raises(AttributeError, match="Jiter"):
        steptwin.Jiter  # noqa: B018


def test_what_functions_give_and_take_is_at_hand_for_annotations() -> None:
    for name in dir(steptwin):
        assert getattr(steptwin, name) is not None, name
    assert set(steptwin.__all__) < set(dir(steptwin)) and not {"json", "Any", "T"} & set(dir(steptwin))
    given = [inspect.signature(getattr(steptwin, name)).return_annotation for name in steptwin.__all__ if name[0].islower()]
    results = {name for name in given if name.isidentifier() and name[0].isupper()} - {"None", "Twin"}  # whose room needs torch
    assert results == {"Plan", "Topology", "Prediction", "Comparison", "Sweep", "Explanation", "Capacity", "Spread", "Faults", "Jobs"}
    for name in results:
        assert inspect.isclass(getattr(steptwin, name))
    assert type(steptwin.predict(PLAN, "dgx-h100")) is steptwin.Prediction


def test_without_detail_the_figures_are_the_same() -> None:
    whole, quick = (steptwin.predict(PLAN, "dgx-h100", detail=detail) for detail in (True, False))
    assert quick.step_time_s == pytest.approx(whole.step_time_s, rel=1e-9) and quick.peak_memory_bytes == whole.peak_memory_bytes
    assert quick.to_dict()["breakdown"] == pytest.approx(whole.to_dict()["breakdown"], abs=1e-3 * whole.step_time_s)
    assert whole.trace and quick.trace and whole.trace.memory and not quick.trace.memory


def test_one_edit_may_stand_alone(tmp_path: Path) -> None:
    """As it may for a machine; its letters were edits of their own, and its price was none."""
    prices = {"dgx-h100": 2.0, "oversubscription=2": 1.0}
    told = steptwin.capacity(PLAN, "dgx-h100", 1e11, edits="oversubscription=2", prices=prices)  # type: ignore[arg-type]
    assert told.money == pytest.approx(3.0 * told.gpu_hours) and not told.unpriced
    found = steptwin.sweep(PLAN, {"micro": [1]}, "dgx-h100", tmp_path / "one.sqlite", edits="gpu.memory=70 GiB")  # type: ignore[arg-type]
    assert [row.outcome for row in found.rows] == ["done"]


def test_capacity_takes_how_things_fail_from_the_face() -> None:
    often = steptwin.capacity(PLAN, "dgx-h100", 1e11, how=steptwin.Reliability(mtbf_gpu=3600.0 * 100))
    assert often.failures > steptwin.capacity(PLAN, Path("dgx-h100"), 1e11).failures


@pytest.mark.parametrize("one", [PLAN, "gpt2-ddp8"])
def test_jobs_are_a_list(one: Any) -> None:
    """A single plan was taken letter by letter, or key by key: "unknown plan 'g'"."""
    with pytest.raises(steptwin.BadInput, match="needs a list of plans"):
        steptwin.jobs(one, "2x dgx-h100")


@pytest.mark.parametrize(
    ("face", "room"),
    [
        (steptwin.predict, predict), (steptwin.explain, explain), (steptwin.spread, spread), (steptwin.run, run_plan), (steptwin.sweep, sweep),
        (steptwin.capacity, capacity), (steptwin.twin, twin),
    ],
)  # fmt: skip
def test_options_have_the_defaults_of_the_rooms(face: Any, room: Any) -> None:
    ours, theirs = inspect.signature(face).parameters, inspect.signature(room).parameters
    both = {name for name in ours if name in theirs and ours[name].default is not inspect.Parameter.empty}
    assert both
    given = {name: theirs[name].default for name in both if theirs[name].default is not inspect.Parameter.empty}
    assert given == {name: ours[name].default for name in given}


def test_a_plan_is_changed_key_by_key() -> None:
    plan = steptwin.plan(PLAN, "batch.micro=2", "parallel.dp_replicate=8")
    assert (plan.batch.micro, plan.world, plan.global_batch) == (2, 8, 16)
    with pytest.raises(steptwin.UnknownName, match=r"batch\.micro"):
        steptwin.plan(PLAN, "batch.mico=2")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"seq_len": -5}, "seq_len"),
        ({"seq_len": "long"}, "seq_len"),
        ({"precision": "bf17"}, "Allowed: fp32"),
        ({"parallel": None}, "parallel"),
        ({"model": object()}, "no value of a plan"),
    ],
)
def test_a_plan_that_a_script_changed_is_checked_like_a_file(change: dict[str, Any], told: str) -> None:
    plan = msgspec.structs.replace(steptwin.plan(PLAN), **change)
    for ask in (steptwin.predict, steptwin.explain, lambda *words: steptwin.capacity(*words, 1e9)):
        with pytest.raises(steptwin.BadInput, match=told):
            ask(plan, "dgx-h100")


def test_numbers_of_numpy_are_numbers() -> None:
    changed = msgspec.structs.replace(steptwin.plan(PLAN), seq_len=numpy.int64(128))
    assert steptwin.plan(changed).seq_len == 128 and type(steptwin.plan(changed).seq_len) is int


def test_a_space_is_a_text_or_values_by_key(tmp_path: Path) -> None:
    written = steptwin.sweep(PLAN, "tp=1,2 parallel.tp_overlap=false", "dgx-h100", tmp_path / "a.sqlite")
    listed = steptwin.sweep(PLAN, {"tp": [1, 2], "parallel.tp_overlap": False}, "dgx-h100", tmp_path / "b.sqlite")
    assert [row.key for row in listed.rows] == [row.key for row in written.rows] and len(listed.rows) == 2
    with pytest.raises(steptwin.BadInput, match="not float"):
        steptwin.sweep(PLAN, 2.5, "dgx-h100")  # type: ignore[arg-type]


@pytest.mark.no_cover
def test_a_row_of_a_sweep_is_a_plan_again(tmp_path: Path) -> None:
    """With what `gpus` leaves to data parallelism, values with blanks, and machines of several names."""
    space = {"tp": [1, 2], "comm.bucket": ["25 MiB"], "gpus": 4, "on": ["dgx-h100", "2x dgx-a100"]}
    found = steptwin.sweep(PLAN, space, "dgx-h100", tmp_path / "a.sqlite", every="whole")
    assert {row.on for row in found.rows} == {"dgx-h100", "2x dgx-a100"}
    for row in found.feasible:
        plan = found.plan(row)
        assert (plan.world, plan.comm.bucket) == (4, 25 << 20)
        assert steptwin.predict(plan, row.on).step_time_s == pytest.approx(row.step_time, rel=1e-6)
    none = steptwin.sweep(PLAN, {"tp": [1, 2], "gpus": 5}, "dgx-h100", tmp_path / "b.sqlite")
    refused = next(row for row in none.rows if row.outcome == "refused")
    with pytest.raises(steptwin.BadInput, match="is no plan: gpus = 5 is no multiple"):
        none.plan(refused)


def test_tokens_are_a_number_or_a_text() -> None:
    assert steptwin.capacity(PLAN, "dgx-h100", "2B").steps == steptwin.capacity(PLAN, "dgx-h100", 2e9).steps
    with pytest.raises(steptwin.UnitError, match="at tokens"):
        steptwin.capacity(PLAN, "dgx-h100", "many")


@pytest.mark.no_cover
def test_a_stall_is_a_number_or_a_text_and_prices_are_by_machine() -> None:
    told = [steptwin.capacity(PLAN, "dgx-h100", "1B", checkpoint=stall).checkpoint_s for stall in (120, "2 min")]
    assert told == [120, 120]
    with pytest.raises(steptwin.UnitError, match="at checkpoint"):
        steptwin.capacity(PLAN, "dgx-h100", "1B", checkpoint="2")
    with pytest.raises(steptwin.BadInput, match=r"prices is money per GPU-hour by machine, .* not 2\.5"):
        steptwin.capacity(PLAN, "dgx-h100", "1B", prices=2.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [None, 3, ["gpt2-ddp8"], b"gpt2-ddp8"])
def test_what_is_no_plan_or_machine_is_told_by_its_kind(wrong: Any) -> None:
    kind = type(wrong).__name__
    with pytest.raises(steptwin.BadInput, match=f"a plan is .* not {kind}"):
        steptwin.predict(wrong, "dgx-h100")
    with pytest.raises(steptwin.BadInput, match=f"a machine is .* not {kind}"):
        steptwin.predict(PLAN, wrong)


@pytest.mark.parametrize("wrong", [-1, 1.5, "two", True, None])
def test_numbers_of_steps_processes_tries_and_draws_are_whole(wrong: Any, tmp_path: Path) -> None:
    with pytest.raises(steptwin.BadInput, match=r"tries = .*: must be a whole number of changes of plan to simulate, at least 0"):
        steptwin.explain(PLAN, "dgx-h100", tries=wrong)
    with pytest.raises(steptwin.BadInput, match=r"workers = .*: must be a whole number of processes, at least 1"):
        steptwin.sweep(PLAN, {"tp": [1]}, "dgx-h100", tmp_path / "a.sqlite", workers=wrong)
    with pytest.raises(steptwin.BadInput, match=r"draws = .*: must be a whole number of drawn steps, at least 1"):
        steptwin.spread(PLAN, "dgx-h100", draws=wrong)
    with pytest.raises(steptwin.BadInput, match=r"steps = .*: must be a whole number of simulated steps"):
        steptwin.predict(PLAN, "dgx-h100", steps=wrong)
    for real in (steptwin.twin, steptwin.run):
        with pytest.raises(steptwin.BadInput, match=r"steps = .*: must be a whole number of timed steps"):
            real(PLAN, tmp_path, steps=wrong)


@pytest.mark.no_cover
def test_numbers_of_numpy_are_whole_too() -> None:
    assert len(steptwin.spread(PLAN, "dgx-h100", draws=numpy.int64(4)).samples) == 4  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [{"detail": "no"}, {"fold": 0}, {"detail": None}])
def test_what_is_neither_true_nor_false_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(steptwin.BadInput, match="must be True or False"):
        steptwin.predict(PLAN, "dgx-h100", **wrong)


@pytest.mark.parametrize("wrong", [{1: 2}, {"model": "gpt2-124m", "batch": {None: 1}}, {"model": {("a", "b"): 1}}])
def test_keys_of_a_plan_are_texts(wrong: dict[Any, Any]) -> None:
    with pytest.raises(steptwin.BadInput, match="is no key: a plan as a dict has a file's keys"):
        steptwin.predict(wrong, "dgx-h100")


def test_machines_are_equal_by_what_they_are() -> None:
    again, changed = steptwin.topology("2x dgx-h100"), steptwin.topology("2x dgx-h100", "oversubscription=2")
    assert steptwin.topology("2x dgx-h100") == again != changed
    assert len({steptwin.topology("2x dgx-h100"), again, changed}) == 2


def test_a_changed_machine_says_so() -> None:
    machine = steptwin.topology("2x dgx-h100")
    assert repr(machine) == "Topology('2x dgx-h100', nodes=2, ranks=16)"
    assert repr(steptwin.topology(machine, "pod=1")) == "Topology('2x dgx-h100', nodes=2, ranks=16, edits=('pod=1',))"


@pytest.mark.no_cover
def test_every_result_prints_shows_draws_and_is_json() -> None:
    found = [
        steptwin.predict(PLAN, "dgx-h100"),
        steptwin.explain(PLAN, "dgx-h100", edits=("link.nvlink.rate=100 GB/s",), tries=1),
        steptwin.capacity(PLAN, "dgx-h100", 1e9),
        steptwin.spread(PLAN, "dgx-h100", 20),
        steptwin.faults(PLAN, "dgx-h100", ["slow=r0:0.8"]),
        steptwin.jobs([PLAN, PLAN], "dgx-h100", ["compact"]),
    ]
    for one in found:
        name = type(one).__name__
        assert str(one).count("\n") > 0 and len(repr(one)) < 450, name
        assert one._repr_html_() and one.figure().data, name
        assert len(one.to_frame()) >= 1 and json.dumps(one.to_dict(), allow_nan=False), name
        again = pickle.loads(pickle.dumps(one))
        assert again.to_dict() == one.to_dict(), name


def step_of(ranks: int) -> Any:
    """In another process."""
    return steptwin.predict({"model": "gpt2-124m", "parallel": {"dp_replicate": ranks}}, "dgx-h100")


@pytest.mark.no_cover
def test_predictions_come_back_from_processes_that_were_spawned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.chdir(tmp_path)
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        steps = [found.step_time_s for found in pool.map(step_of, (1, 8))]
    assert steps[0] < steps[1]
