"""The run over published steps: processes find what one finds, a row that fails does not end it, and what is told of it."""

from __future__ import annotations

from math import exp
from pathlib import Path

import pytest

from sim.accuracy import intervals
from sim.accuracy.intervals import Residual, by_group, held_left_out, residuals, text
from sim.accuracy.result import Found
from sim.accuracy.rows.plans import Case
from sim.accuracy.tables import accuracy_tables, step_tables
from sim.accuracy.training import predict_case, validate_training
from sim.result.uncertainty import figures
from topologies.errors import BadInput, Refused

LIMIT = 6


def quick(case: Case) -> Found:
    """A second for every plan."""
    return Found(1.0, 0.4)


def failing(case: Case) -> Found:
    """What a row that is refused, and a defect of ours, look like."""
    if case.plan.world % 3:
        raise Refused("no such units")
    raise ZeroDivisionError("division by zero")


@pytest.mark.no_cover
def test_processes_find_what_one_finds() -> None:
    one, two = (validate_training(None, workers, LIMIT, predict_seconds=quick) for workers in (1, 2))
    assert [o.row_id for o in one.outcomes] == [o.row_id for o in two.outcomes]
    assert one.eligible == LIMIT == one.scored + len(one.refused)
    assert one.mape == two.mape


def test_processes_tell_how_far_they_are() -> None:
    done: list[tuple[int, int]] = []
    found = validate_training(None, 2, LIMIT, predict_seconds=quick, progress=lambda at, of: done.append((at, of)))
    assert done == [(at, len(done)) for at in range(1, len(done) + 1)] and 0 < len(done) <= found.scored


def test_a_row_without_its_gpus_is_refused_and_counted(tmp_path: Path) -> None:
    names = ("row_id", "gpu", "gpus", "framework", "global_batch", "step_time_s", "quality", "model_name", "n_layers", "hidden", "n_heads",
             "vocab_size", "seq_len", "model_type", "precision")  # fmt: skip
    good = ("a", "H100", "8", "pytorch", "8", "1.0", "A", "GPT", "4", "1024", "16", "50304", "512", "gpt2", "bf16")
    lines = (names, good, ("b", "H100", "", *good[3:]), ("c", *good[1:6], "C", *good[7:]))
    (tmp_path / "t.csv").write_text("\n".join(",".join(line) for line in lines) + "\n")
    found = validate_training(str(tmp_path / "t.csv"), 1, predict_seconds=quick)
    assert (found.rows, found.eligible, found.scored) == (3, 2, 1)
    assert [(one.row_id, one.reason) for one in found.refused] == [("b", "the number of GPUs is not stated")]
    tables = step_tables(found)
    assert tables["refused"] == [{"reason": "the number of GPUs is not stated", "rows": 1}]


def test_rows_are_one_plan_measured_again_where_all_of_it_is_the_same(tmp_path: Path) -> None:
    names = "row_id,gpu,gpus,framework,global_batch,step_time_s,quality,model_name,n_layers,hidden,n_heads,vocab_size,seq_len,optimizer"
    row = "{},H100,8,pytorch,8,{},A,GPT,4,1024,16,50304,512,{}"
    lines = (row.format("a", 1.0, "adamw"), row.format("b", 1.1, "adamw"), row.format("c", 0.5, "sgd"))
    (tmp_path / "t.csv").write_text("\n".join((names, *lines)) + "\n")
    a, b, c = validate_training(str(tmp_path / "t.csv"), 1, predict_seconds=quick).outcomes
    assert a.plan_key == b.plan_key != c.plan_key


def test_a_row_that_fails_is_refused_with_its_reason() -> None:
    done: list[tuple[int, int]] = []
    found = validate_training(None, 1, LIMIT, predict_seconds=failing, progress=lambda at, of: done.append((at, of)))
    assert found.scored == 0
    assert {one.reason.split(":")[0] for one in found.refused} <= {"no such units", "internal error, please report"}
    assert any("ZeroDivisionError" in one.reason or one.reason == "no such units" for one in found.refused)
    assert done and done[-1][0] == done[-1][1]


def test_only_some_rows_may_be_asked_for() -> None:
    found = validate_training(None, 1, predict_seconds=quick, only=lambda row: row.row_id.endswith("0001"))
    assert found.outcomes
    assert all(one.row_id.endswith("0001") for one in found.outcomes)


@pytest.mark.no_cover
def test_tables_have_a_row_for_all_and_for_each_group() -> None:
    tables = step_tables(validate_training(None, 1, LIMIT, predict_seconds=predict_case))
    assert len(tables["published steps"]) == 1
    assert {"published steps by source", "published steps by GPU", "published steps by family"} <= set(tables)


@pytest.mark.no_cover
def test_without_measurements_beside_the_tool_their_tables_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sim.accuracy import tables

    told: list[str] = []
    few = validate_training(None, 1, 3, predict_seconds=predict_case)
    monkeypatch.setattr(tables, "validate_training", lambda *_, **__: few)
    found = accuracy_tables(tmp_path, 1, say=told.append)
    assert sum("absent" in line for line in told) == 2
    assert "kernels" not in found and "collectives" not in found
    assert found["peak memory"] and found["published steps"]


def test_residuals_are_misses_of_the_rows() -> None:
    rows, found = residuals(None, 1, 3), validate_training(None, 1, 3, predict_seconds=predict_case)
    errors = {one.row_id: one.error for one in found.outcomes}
    assert rows
    for row in rows:
        assert exp(-row.miss) - 1 == pytest.approx(errors[row.row_id])
        assert sum(row.shares.values()) == pytest.approx(1.0)


def _residual(number: int, gpu: str) -> Residual:
    return Residual(
        row_id=f"r{number}",
        source_id=f"s{number % 3}",
        gpu=gpu,
        family="decoder",
        miss=0.02 * (number % 7),
        shares={("gemm", "fitted"): 0.7, ("host", "assumed"): 0.3},
        beyond=False,
    )


def test_groups_say_how_many_rows_lie_inside() -> None:
    pytest.importorskip("scipy")
    rows = [_residual(number, "A100" if number % 2 else "H100") for number in range(24)]
    found = by_group(rows, figures(), lambda row: row.gpu)
    assert {name: count for name, (count, _, _) in found.items()} == {"A100": 12, "H100": 12}
    assert all(0.0 <= share <= 1.0 and wide > 0 for _, share, wide in found.values())
    assert 0.0 <= held_left_out(rows, lambda row: row.source_id) <= 1.0


def test_the_file_of_figures_reads_back() -> None:
    import tomllib

    known = figures()
    found = tomllib.loads(text(known, {"in sample": 0.8}, 24))
    assert found["plan"] == pytest.approx(known.plan)
    assert found["sigma"] == pytest.approx(known.sigma) and found["width"] == pytest.approx(known.width)


def test_the_fit_by_hand_prints_a_file_and_what_its_groups_hold(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import tomllib

    pytest.importorskip("scipy")
    rows = [_residual(number, "A100" if number % 2 else "H100") for number in range(24)]
    monkeypatch.setattr(intervals, "residuals", lambda path, workers: rows)
    intervals.main(None, 1)
    said = capsys.readouterr().out
    assert set(tomllib.loads(said)) >= {"plan", "sigma", "width", "range"}
    assert "in sample" in said and "source left out" in said and "Fitted on 24 published steps" in said
    lines = [line for line in said.splitlines() if "mean reach" in line]
    assert [line.split(":")[0] for line in lines] == [
        "# source s0",
        "# source s1",
        "# source s2",
        "# GPU A100",
        "# GPU H100",
        "# family decoder",
    ]
    assert all(" 8 rows" in line for line in lines[:3]) and all(" 12 rows" in line for line in lines[3:5])


def test_a_table_that_is_absent_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"none\.csv"):
        validate_training(str(tmp_path / "none.csv"))
