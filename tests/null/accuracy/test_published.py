"""The table that ships: complete, resolved by name, each figure with its source, equal to the one it was written from."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import msgspec
import pytest

from sim.accuracy import published
from sim.accuracy.published import published_rows, sample
from sim.accuracy.row import Row, read_rows
from sim.accuracy.rows.plans import case_of
from topologies.errors import BadInput

TABLE = Path(__file__).parents[3].parent / "shared" / "groundtruth" / "training.csv"


def test_every_row_is_usable_and_scored() -> None:
    rows = published_rows()
    assert len(rows) > 1000 and len({row.row_id for row in rows}) == len(rows)
    assert all(row.scored and not row.problem for row in rows)


def test_every_figure_has_a_source_that_can_be_opened() -> None:
    known = published.shared().documents
    pages = [f"https://github.com/{one.repository}/blob/{one.revision}/{one.path}" for one in known.values()]
    assert all(re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+/blob/[^/]+/.+", page) for page in pages)


def test_every_name_in_the_rows_is_resolved_and_none_is_unused() -> None:
    with (published.FOLDER / "published.csv").open(encoding="utf-8", newline="") as file:
        cells = list(csv.DictReader(line for line in file if not line.startswith("#")))
    known = msgspec.structs.asdict(published.shared())
    assert {row["document"] for row in cells} == set(known["documents"])
    for name in published.NAMES:
        assert {row[name] for row in cells} == set(known[name]), name


def test_the_files_stay_small() -> None:
    size = sum((published.FOLDER / name).stat().st_size for name in ("published.csv", "published.toml"))
    assert size < 400_000


def _plan(row: Row) -> object:
    try:
        case = case_of(row)
    except BadInput as error:
        return str(error)
    return case.plan, case.topology, case.assumed


@pytest.mark.no_cover
@pytest.mark.skipif(not TABLE.is_file(), reason="the full table is not beside the project")
def test_it_gives_the_plans_of_the_full_table() -> None:
    full = {row.row_id: row for row in read_rows(TABLE) if row.scored and not row.problem}
    rows = published_rows()
    assert {row.row_id for row in rows} == set(full)
    for row in rows:
        assert row.step_time_s == full[row.row_id].step_time_s
        assert _plan(row) == _plan(full[row.row_id]), row.row_id


@pytest.mark.skipif(not TABLE.is_file(), reason="the full table is not beside the project")
def test_it_is_what_the_writer_writes() -> None:
    scored = {row.row_id for row in read_rows(TABLE) if row.scored and not row.problem}
    with TABLE.open(encoding="utf-8-sig", newline="") as file:
        rows, names = published.compact([row for row in csv.DictReader(file) if row["row_id"] in scored])
    assert rows == (published.FOLDER / "published.csv").read_text("utf-8")
    assert names == (published.FOLDER / "published.toml").read_text("utf-8")


@pytest.mark.no_cover
def test_the_sample_is_fixed_and_spread() -> None:
    rows = published_rows()
    chosen = sample(60)
    assert len(chosen) == 60 and chosen == sample(60)
    assert {row.source_id for row in chosen} == {row.source_id for row in rows}
    assert {row.gpu for row in chosen} == {row.gpu for row in rows}
    assert {row.family for row in chosen} == {row.family for row in rows}


def test_a_sample_takes_each_group_from_its_middle_outwards() -> None:
    rows = [Row(row_id=f"{source}{index}", source_id=source) for source in "ab" for index in range(4)]
    assert [row.row_id for row in sample(2, rows)] == ["a2", "b2"]
    assert [row.row_id for row in sample(4, rows)] == ["a1", "a2", "b1", "b2"]
    assert sample(99, rows) == rows
