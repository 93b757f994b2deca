"""Tables are read cell by cell: a bad cell spoils its row, a bad file is an error that says why."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import steptwin
from sim.accuracy.row import read_rows
from sim.accuracy.training import validate_training
from topologies.errors import BadInput

HEADER = "row_id,source_id,gpu,gpus,framework,global_batch,step_time_s,quality,micro_batch,notes\n"


def table(tmp_path: Path, body: str, header: str = HEADER) -> Path:
    path = tmp_path / "table.csv"
    path.write_text(header + body, encoding="utf-8")
    return path


def test_empty_cells_are_unknown(tmp_path: Path) -> None:
    (row,) = read_rows(table(tmp_path, "a,s,H100,8,torchtitan,64,1.5,A,,\n"))
    assert (row.gpus, row.step_time_s, row.micro_batch, row.notes) == (8, 1.5, None, "")
    assert row.scored and not row.problem


@pytest.mark.parametrize("cell", ["zero", "-3", "0", "8 ms", "inf", "2.5", "1e400"])
def test_a_cell_that_is_no_number_spoils_its_row_alone(tmp_path: Path, cell: str) -> None:
    good, bad = read_rows(table(tmp_path, f"a,s,H100,8,torchtitan,64,1.5,A,2,\nb,s,H100,{cell},torchtitan,64,1.5,A,2,\n"))
    assert not good.problem
    assert "gpus" in bad.problem


def test_what_a_program_writes_for_nothing_is_nothing(tmp_path: Path) -> None:
    (row,) = read_rows(table(tmp_path, "a,s,H100,8,nan,64,1.5,A,NaN,null\n"))
    assert not row.problem and (row.framework, row.micro_batch, row.notes) == ("", None, "")


def test_rows_named_twice_are_told(tmp_path: Path) -> None:
    first, second = read_rows(table(tmp_path, "a,s,H100,8,x,64,1.5,A,2,\na,s,H100,8,x,64,1.5,A,2,\n"))
    assert not first.problem and "twice" in second.problem


def test_quality_c_and_rows_without_a_time_are_not_scored(tmp_path: Path) -> None:
    rows = read_rows(table(tmp_path, "a,s,H100,8,x,64,1.5,C,2,\nb,s,H100,8,x,64,,A,2,\n"))
    assert [row.scored for row in rows] == [False, False]


def test_absent_files_and_missing_columns(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="does not exist"):
        read_rows(tmp_path / "none.csv")
    with pytest.raises(BadInput, match="global_batch, step_time_s"):
        read_rows(table(tmp_path, "", "row_id,gpu,gpus,framework\n"))


@given(st.binary(max_size=200))
def test_any_bytes_are_rows_or_bad_input(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("t") / "t.csv"
    path.write_bytes(HEADER.encode() + data)
    with contextlib.suppress(BadInput):
        read_rows(path)


def test_what_is_no_file_and_no_row_at_all_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is no file"):
        read_rows(tmp_path)
    for limit in (0, -1):
        with pytest.raises(BadInput, match="at least one row"):
            validate_training(None, limit=limit)


@pytest.mark.parametrize("cell", ['"1,5"', "0", "-2", "fast"])
def test_a_step_time_that_cannot_be_read_is_refused_not_passed_over(cell: str, tmp_path: Path) -> None:
    found = validate_training(table(tmp_path, f"a,s,H100,8,torchtitan,64,{cell},A,,\n"), workers=1)
    assert (found.eligible, found.scored) == (1, 0)
    assert found.refused[0].row_id == "a" and "step_time_s" in found.refused[0].reason


def test_where_nothing_is_scored_no_error_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["steptwin", "validate", "--data", str(table(tmp_path, "a,s,H100,8,torchtitan,64,,A,,\n"))])
    with contextlib.suppress(SystemExit):
        steptwin.main()
    out, err = capsys.readouterr()
    assert "%" not in out and "nothing is scored: of 1 rows 0 are of quality A or B" in err
